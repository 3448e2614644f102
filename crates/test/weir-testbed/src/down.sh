# Removes a testbed: its processes, and with them its namespaces and mounts; then its cgroups and its
# folder. It succeeds if there is none.
folder=$1
id=$(cat "$folder/launcher" 2>/dev/null)
# The id may belong to another process by now.
if test -n "$id" && tr '\0' ' ' <"/proc/$id/cmdline" 2>/dev/null | grep -qF "$folder "; then
    kill -9 "$id"
fi
rounds=0
for cgroup in "/sys/fs/cgroup/${folder##*/}" "/sys/fs/cgroup"/*/"${folder##*/}"; do
    # A dying process keeps its cgroup for a moment.
    while test -d "$cgroup" && ! find "$cgroup" -depth -type d -exec rmdir {} + 2>/dev/null; do
        rounds=$((rounds + 1))
        if test $rounds -gt 300; then
            echo "cannot remove $cgroup" >&2
            exit 1
        fi
        sleep 0.1
    done
done
rm -rf -- "$folder"
