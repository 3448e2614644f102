# The first process of a node: gives it a root of its own, then waits. Killing it is a power failure.
set -e
folder=$1 name=$2
disk=$folder/disks/$name
read -r id _ </proc/self/stat
# The folder is out of reach after the change of roots.
exec 3>"$folder/$name/id"
mkdir -p "$disk"
mount --bind "$disk" "$disk"
cd "$disk"
mkdir -p dev etc opt/cni/bin opt/weir old proc root run sys tmp usr var
cp -a "$folder/$name/files/." .
for path in bin sbin lib lib32 lib64 libx32; do
    if test -L "/$path"; then
        cp -Pf "/$path" .
    elif test -d "/$path"; then
        mkdir -p "$path"
        mount --rbind "/$path" "$path"
    fi
done
mount --rbind /usr usr
mount --rbind /dev dev
while read -r own path; do
    : >>"opt/weir/$own"
    mount --bind "$path" "opt/weir/$own"
done <"$folder/programs"
ln -sf ../../weir/bridge ../../weir/host-local ../../weir/loopback ../../weir/portmap opt/cni/bin/
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs tmpfs tmp
test -e var/run || ln -s /run var/run
mount -t proc proc proc
mount -t sysfs sysfs sys
# For agents with eBPF programs. Each mount is a file system of its own.
mount -t bpf bpf sys/fs/bpf || :
for path in alternatives group ld.so.cache ld.so.conf ld.so.conf.d mime.types nsswitch.conf passwd \
    protocols services xtables; do
    if test -e "/etc/$path"; then cp -a "/etc/$path" etc/; fi
done
printf '127.0.0.1 localhost\n::1 localhost\n' >etc/hosts
: >etc/resolv.conf

# A cgroup namespace shows the cgroups of this node only.
if test "$(stat -f -c %T /sys/fs/cgroup)" = cgroup2fs; then
    mount -t cgroup2 cgroup2 sys/fs/cgroup
    for controller in $(cat sys/fs/cgroup/cgroup.controllers); do
        echo "+$controller" >sys/fs/cgroup/cgroup.subtree_control || :
    done
else
    mount -t tmpfs -o mode=755 tmpfs sys/fs/cgroup
    for path in /sys/fs/cgroup/*; do
        own=sys/fs/cgroup/${path##*/}
        if test -L "$path"; then
            cp -P "$path" sys/fs/cgroup/
        elif test "$(stat -f -c %T "$path")" = cgroupfs; then
            mkdir "$own"
            case ${path##*/} in
            systemd) mount -t cgroup -o none,name=systemd cgroup "$own" ;;
            *) mount -t cgroup -o "${path##*/}" cgroup "$own" ;;
            esac
        fi
    done
fi
pivot_root . old
cd /
umount -l old
hostname "$name"

ip link set lo up
cd /proc/sys/net
echo 1 >ipv4/ip_forward
echo 1 >ipv6/conf/all/forwarding
echo 0 >ipv6/conf/default/accept_dad
echo 0 >ipv6/conf/all/accept_dad
# Without these, policies do not apply to packets between pods of a bridge.
for setting in bridge/bridge-nf-call-iptables bridge/bridge-nf-call-ip6tables; do
    if test -e $setting; then echo 1 >$setting; fi
done
cd /
echo "$id" >&3
exec 3>&-
while :; do
    sleep 3600 &
    wait $!
done
