# The first process of the rack: the namespaces of the network between the nodes and of the control
# plane. Killing it kills every process of the testbed.
set -e
folder=$1
ip link set lo up
ip link add rack type bridge
ip address add "$2" dev rack
ip address add "$3" dev rack nodad
ip link set rack up
# Mounts that survive a restart of a node: its disk.
mkdir -p "$folder/disks"
mount -t tmpfs -o mode=755 tmpfs "$folder/disks"
# This /proc belongs to the outer process id namespace, so this is the id that others see.
read -r id _ </proc/self/stat
echo "$id" >"$folder/rack.new"
mv "$folder/rack.new" "$folder/rack"
# `wait` also reaps the orphans of the namespace.
while :; do
    sleep 3600 &
    wait $!
done
