/// What `--help` says.
pub(crate) const HELP: &str = "\
A chained CNI plugin: a pod starts when its policies are in force

Usage:
  weir-cni install   [--conf-dir DIR] [--bin-dir DIR] [--socket PATH] [--timeout SECONDS] [--on-failure refuse|allow]
                     [--watch [--remove-on-exit]]
  weir-cni uninstall [--conf-dir DIR] [--bin-dir DIR] [--keep-binary]

Container runtimes start it without arguments, with CNI_COMMAND and the other variables of the CNI specification, versions
0.3.1 to 1.1.0. It asks the agent of this node, which needs `weir agent --cni-socket PATH`.

install      copies itself to the folder of plugins, and adds itself as the last plugin of the first network configuration.
             Safe to repeat. Exit status 1 if there is no configuration yet
uninstall    removes both again; a configuration that nobody changed meanwhile is what it was before, byte for byte.
             Waits up to 30 s for an `install --watch` to end, and fails if it does not: it would add the plugin again

Options:
      --conf-dir DIR          the folder of network configurations [default: /etc/cni/net.d]
      --bin-dir DIR           the folder of plugins [default: /opt/cni/bin]
      --socket PATH           where the agent listens [default: /run/weir/agent.sock]
      --timeout SECONDS       how long a pod waits for its policies, 0.1 to 60 [default: 10]
      --on-failure WHAT       what happens if the agent is away or too slow: refuse, and the kubelet tries again; or
                              allow, and the pod starts without being sure [default: refuse]
      --watch                 stay, and install again whenever somebody writes the configuration anew; one that is not
                              there yet is waited for. SIGTERM ends it, and what is installed stays
      --remove-on-exit        with --watch: SIGTERM uninstalls
      --keep-binary           leave the program where it is
  -h, --help                  this text
  -V, --version               the version

Examples:
  weir-cni install
  weir-cni install --conf-dir /host/etc/cni/net.d --bin-dir /host/opt/cni/bin --timeout 20
  weir-cni install --watch
  weir-cni uninstall
";
