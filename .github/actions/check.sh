#!/usr/bin/env bash
# The steps of the GitHub Action: annotates the changed lines, and writes a comment.
# It reads the inputs of action.yml from variables whose names begin with WEIR_.
set -euo pipefail

read -ra paths <<<"$WEIR_PATHS"
read -ra tests <<<"$WEIR_TESTS"
files=()
for path in "${paths[@]}"; do files+=(-f "$path"); done
comment="${RUNNER_TEMP:?}/weir.md"
: >"$comment"
failed=0
changed=false

# Runs a command of weir twice, for the log and for the comment. Returns its exit status; a status
# above 1 means that weir could not answer, and ends the script.
report() {
  local command=$1 status=0
  shift
  weir "$command" -o github "$@" || status=$?
  if ((status > 1)); then exit "$status"; fi
  {
    printf '### weir %s\n\n' "$command"
    weir "$command" -o markdown "$@" 2>/dev/null || true
    echo
  } >>"$comment"
  return "$status"
}

if [[ -n $WEIR_SARIF ]]; then
  status=0
  weir lint "${files[@]}" -o sarif >"$WEIR_SARIF" || status=$?
  if ((status > 1)); then exit "$status"; fi
fi
report lint "${files[@]}" --fail-on "$WEIR_FAIL_ON" || failed=1
if ((${#tests[@]} > 0)); then
  report test "${tests[@]}" || failed=1
fi
if [[ -n $WEIR_BASE ]]; then
  # A checkout of a pull request has one commit.
  git fetch --quiet --depth 1 origin "$WEIR_BASE"
  report diff git:FETCH_HEAD -- "${paths[@]}" || changed=true
fi
cat "$comment" >>"$GITHUB_STEP_SUMMARY"
{
  echo "comment=$comment"
  echo "changed=$changed"
} >>"$GITHUB_OUTPUT"
if [[ $changed == true && $WEIR_FAIL_ON_DIFF == true ]]; then failed=1; fi
exit "$failed"
