{{- define "weir.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The selector labels of a component's pods: (list . "agent") */}}
{{- define "weir.selector" -}}
app.kubernetes.io/name: {{ (index . 0).Chart.Name }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "weir.labels" -}}
{{ include "weir.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
{{- end -}}

{{/* The namespace of a component: (list . "agent") */}}
{{- define "weir.namespace" -}}
{{- $root := index . 0 -}}
{{- ternary $root.Values.controller.namespace $root.Release.Namespace (eq (index . 1) "controller") -}}
{{- end -}}

{{/* The image: (list . "-iptables") */}}
{{- define "weir.image" -}}
{{- $root := index . 0 -}}
{{- printf "%s:%s%s" $root.Values.image.repository (default $root.Chart.AppVersion $root.Values.image.tag) (index . 1) -}}
{{- end -}}

{{- define "weir.agent.image" -}}
{{- include "weir.image" (list . (ternary "-iptables" "" (eq .Values.agent.datapath "iptables"))) -}}
{{- end -}}

{{/* "true" if the agents run with the CNI plugin. opflex-agent applies policies itself. */}}
{{- define "weir.cni" -}}
{{- if and .Values.agent.cni.enabled (ne .Values.agent.datapath "opflex") }}true{{ end -}}
{{- end -}}

{{/* "true" if the agents report which policies are in force. They can write all Leases of their
namespace, and those of kube-system elect the scheduler and the controller manager. */}}
{{- define "weir.reports" -}}
{{- if has "conditions" .Values.controller.enable }}
{{- if eq .Release.Namespace "kube-system" }}
{{- fail "the controller conditions is not supported in kube-system, where agents could write the Leases of the control plane: install weir in another namespace" }}
{{- end }}true{{ end -}}
{{- end -}}

{{/* "true" if the agents use relays. The objects of opflex are not relayed. */}}
{{- define "weir.relays" -}}
{{- if and (gt (int .Values.relay.replicas) 0) (ne .Values.agent.datapath "opflex") (not .Values.cleanup.enabled) }}true{{ end -}}
{{- end -}}

{{/* The enabled controllers, separated by commas. Helm reads `--set controller.enable={}` as [""]. */}}
{{- define "weir.controllers" -}}
{{- join "," (without .Values.controller.enable "") -}}
{{- end -}}

{{/* The container that removes weir-cni from a node. Without weir-cni it does nothing. */}}
{{- define "weir.cni.uninstall" -}}
- name: cni
  image: {{ include "weir.agent.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [/usr/local/bin/weir-cni]
  args: [uninstall, --conf-dir=/host/cni/conf, --bin-dir=/host/cni/bin]
  securityContext:
    runAsUser: 0
    {{- include "weir.confined" . | nindent 4 }}
  volumeMounts:
    - {name: cni-conf, mountPath: /host/cni/conf}
    - {name: cni-bin, mountPath: /host/cni/bin}
{{- end -}}

{{/* The folders of the CNI configuration and of the plugins. */}}
{{- define "weir.cni.volumes" -}}
- name: cni-conf
  hostPath: {path: {{ .Values.agent.cni.confDir }}, type: DirectoryOrCreate}
- name: cni-bin
  hostPath: {path: {{ .Values.agent.cni.binDir }}, type: DirectoryOrCreate}
{{- end -}}

{{/* The security context of a container without privileges. */}}
{{- define "weir.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/*
The agent's rights on a node. Root: Kubernetes gives added capabilities to no other user. NET_ADMIN: rules, sets, connections and the reports of
dropped packets. NET_RAW, with iptables: its programs open a raw socket; with ebpf and agent.denied, the agent sends answers from one. BPF and PERFMON, with ebpf: programs and maps. With opflex: none, the folder is root's. Nothing else of root's is left.
*/}}
{{- define "weir.agent.securityContext" -}}
runAsUser: 0
{{ include "weir.confined" . }}
{{- if ne .Values.agent.datapath "opflex" }}
  add: [{{ get (dict "iptables" "NET_ADMIN, NET_RAW" "ebpf" "NET_ADMIN, BPF, PERFMON" "nftables" "NET_ADMIN") .Values.agent.datapath }}{{ if and (eq .Values.agent.datapath "ebpf") (ne .Values.agent.denied "drop") (not .Values.agent.audit) }}, NET_RAW{{ end }}]
{{- end }}
{{- if eq .Values.agent.datapath "ebpf" }}
# The default profile of containerd 1.6 admits the system call bpf only with CAP_SYS_ADMIN.
seccompProfile: {type: Unconfined}
{{- end }}
{{- end -}}

{{/* The host paths that the datapath needs, as mounts and as volumes. */}}
{{- define "weir.agent.mounts" -}}
{{- if eq .Values.agent.datapath "iptables" }}
- {name: xtables-lock, mountPath: /run/xtables.lock}
{{- else if eq .Values.agent.datapath "ebpf" }}
- {name: bpf, mountPath: /sys/fs/bpf}
{{- else if eq .Values.agent.datapath "opflex" }}
- {name: netpols, mountPath: {{ .Values.aci.netpolDir }}}
{{- end }}
{{- end -}}

{{- define "weir.agent.volumes" -}}
{{- if eq .Values.agent.datapath "iptables" }}
# The lock that all iptables users of the node share, for example kube-proxy.
- name: xtables-lock
  hostPath: {path: /run/xtables.lock, type: FileOrCreate}
{{- else if eq .Values.agent.datapath "ebpf" }}
# The names of programs and maps, which outlive the agent.
- name: bpf
  hostPath: {path: /sys/fs/bpf, type: Directory}
{{- else if eq .Values.agent.datapath "opflex" }}
- name: netpols
  hostPath: {path: {{ .Values.aci.netpolDir }}, type: DirectoryOrCreate}
{{- end }}
{{- end -}}

{{/* Permissions to watch policies and the objects that they select. */}}
{{- define "weir.rules.world" -}}
- apiGroups: [""]
  resources: [namespaces, nodes, pods]
  verbs: [list, watch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [list, watch]
- apiGroups: [policy.networking.k8s.io]
  resources: [adminnetworkpolicies, baselineadminnetworkpolicies, clusternetworkpolicies]
  verbs: [list, watch]
# To see whether these kinds are installed: without a definition there are no policies, but a failed
# list keeps the last known policies.
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
  resourceNames:
    - adminnetworkpolicies.policy.networking.k8s.io
    - baselineadminnetworkpolicies.policy.networking.k8s.io
    - clusternetworkpolicies.policy.networking.k8s.io
  verbs: [get]
{{- end -}}

{{/* Permissions for the objects of ACI in their namespace: (list . "agent" "list, watch") */}}
{{- define "weir.aci.role" -}}
{{- $root := index . 0 -}}
{{- $name := printf "%s-%s" (include "weir.fullname" $root) (index . 1) }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ $name }}
  namespace: {{ $root.Values.aci.namespace }}
  labels:
    {{- include "weir.labels" (list $root (index . 1)) | nindent 4 }}
rules:
  - apiGroups: [aci.hpp]
    resources: [hostprotpols, hostprotremoteipcontainers]
    verbs: [{{ index . 2 }}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ $name }}
  namespace: {{ $root.Values.aci.namespace }}
  labels:
    {{- include "weir.labels" (list $root (index . 1)) | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ $name }}
subjects:
  - kind: ServiceAccount
    name: {{ $name }}
    namespace: {{ include "weir.namespace" (list $root (index . 1)) }}
{{- end -}}
