{{- define "weir.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* What a part's pods are known by: (list . "agent") */}}
{{- define "weir.selector" -}}
app.kubernetes.io/name: {{ (index . 0).Chart.Name }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "weir.labels" -}}
{{ include "weir.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
{{- end -}}

{{/* The image: (list . "-iptables") */}}
{{- define "weir.image" -}}
{{- $root := index . 0 -}}
{{- printf "%s:%s%s" $root.Values.image.repository (default $root.Chart.AppVersion $root.Values.image.tag) (index . 1) -}}
{{- end -}}

{{- define "weir.agent.image" -}}
{{- include "weir.image" (list . (ternary "-iptables" "" (eq .Values.agent.datapath "iptables"))) -}}
{{- end -}}

{{/* A container that may do nothing. */}}
{{- define "weir.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/*
The agent's rights on a node. Root: Kubernetes gives added capabilities to no other user. NET_ADMIN: rules, sets, connections and the reports of
dropped packets. NET_RAW, with iptables: its programs open a raw socket. Nothing else of root's is left.
*/}}
{{- define "weir.agent.securityContext" -}}
runAsUser: 0
{{ include "weir.confined" . }}
  add: [{{ ternary "NET_ADMIN, NET_RAW" "NET_ADMIN" (eq .Values.agent.datapath "iptables") }}]
{{- end -}}
