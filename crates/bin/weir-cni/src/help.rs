/// The output of `--help`.
pub(crate) const HELP: &str = "\
A chained CNI plugin: a pod starts when its policies are in force

Usage:
  weir-cni install   [--conf-dir DIR] [--bin-dir DIR] [--socket PATH] [--timeout SECONDS] [--on-failure refuse|allow]
                     [--watch [--remove-on-exit]]
  weir-cni uninstall [--conf-dir DIR] [--bin-dir DIR] [--keep-binary]

Container runtimes start it without arguments, with CNI_COMMAND and the other variables of the CNI specification,
versions 0.3.1 to 1.1.0. It waits for the agent of this node, which must run with `weir agent --cni-socket PATH`.

install      copies itself to the plugin folder and adds itself as the last plugin of the first network configuration.
             Safe to repeat. Exit status 1 if there is no configuration yet
uninstall    removes both. A configuration that was not changed since is restored byte for byte. Waits up to 30 s for
             an `install --watch` to end, and fails if it does not, because that would add the plugin again

Options:
      --conf-dir DIR          the folder of network configurations [default: /etc/cni/net.d]
      --bin-dir DIR           the plugin folder [default: /opt/cni/bin]
      --socket PATH           the socket of the agent [default: /run/weir/agent.sock]
      --timeout SECONDS       the time that a pod waits for its rules, 0.1 to 60 [default: 10]
      --on-failure ACTION     if the agent is unreachable or too slow: refuse the pod, and the kubelet tries again; or
                              allow it, and the pod starts even if its rules are not in force [default: refuse]
      --watch                 keep running, and install again when another program rewrites the configuration; wait
                              for a configuration if there is none. SIGTERM stops it; the plugin stays installed
      --remove-on-exit        with --watch: uninstall on SIGTERM
      --keep-binary           do not remove the program
  -h, --help                  print this help
  -V, --version               print the version

Examples:
  weir-cni install
  weir-cni install --conf-dir /host/etc/cni/net.d --bin-dir /host/opt/cni/bin --timeout 20
  weir-cni install --watch
  weir-cni uninstall
";
