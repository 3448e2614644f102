# Arguments: ADDRESS PORT ADDRESS PORT ...
# A refused connection has reached the other end. Only a known message of a timeout means "denied".
set -f
try() {
  if command -v nc >/dev/null 2>&1; then
    said=$(nc -z -v -w 3 "$2" "$3" </dev/null 2>&1)
  elif command -v bash >/dev/null 2>&1 && command -v timeout >/dev/null 2>&1; then
    said=$(timeout 3 bash -c 'exec 3<>"/dev/tcp/$1/$2"' bash "$2" "$3" 2>&1)
  else
    said='it has neither nc, nor bash and timeout'
    false
  fi
  case "$?:$said" in
    0:* | *[Rr]efused* | *'reset by peer'*) letter=a ;;
    124:* | 143:* | *[Tt]imed\ out* | *TIMEOUT* | *'No route to host'* | *'Host is unreachable'*)
      letter=d ;;
    *) letter=u ;;
  esac
  echo "$1 $letter" $said
}
number=0
while [ $# -ge 2 ]; do
  try "$number" "$1" "$2" &
  shift 2
  number=$((number + 1))
  # A container can limit its processes.
  if [ $((number % 20)) -eq 0 ]; then wait; fi
done
wait
