//! Workloads of other projects.

use expect_test::{Expect, expect};

use super::check;
use crate::{ManifestReader, PodDetails, testing::read};

/// The pods of each workload.
fn owners(text: &str) -> String {
    let line = |(owner, pods): (&crate::WorkloadRef, &Vec<weir_model::PodId>)| {
        let pods: Vec<String> = pods.iter().map(ToString::to_string).collect();
        format!("{}/{}/{}: {}\n", owner.namespace, owner.kind, owner.name, pods.join(" "))
    };
    read(text).owners.iter().map(line).collect()
}

#[track_caller]
fn check_owners(text: &str, expected: Expect) {
    expected.assert_eq(&owners(text));
}

#[test]
fn known_workloads_of_other_projects_make_pods() {
    check(
        "
apiVersion: argoproj.io/v1alpha1
kind: Rollout
metadata: {name: web}
spec:
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, ports: [{name: http, containerPort: 80}]}]}
---
apiVersion: apps.openshift.io/v1
kind: DeploymentConfig
metadata: {name: old}
spec: {template: {metadata: {labels: {app: old}}, spec: {containers: [{name: c}]}}}
---
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: vm}
spec:
  template:
    metadata: {labels: {app: vm}}
    spec:
      domain:
        devices:
          interfaces: [{name: default, masquerade: {}, ports: [{name: ssh, port: 22}, {port: 53, protocol: UDP}]}]
---
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: vmi, labels: {app: vmi}}
spec: {domain: {devices: {}}}
---
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: fn}
spec: {template: {metadata: {labels: {app: fn}}, spec: {containers: [{image: i}]}}}",
        expect![[r#"
            Namespace default kubernetes.io/metadata.name=default
            Pod default/fn [app=fn,serving.knative.dev/configuration=fn,serving.knative.dev/service=fn] [10.143.248.106] []
            Pod default/old [app=old,deploymentconfig=old] [10.221.79.243] []
            Pod default/vm [app=vm,kubevirt.io=virt-launcher,vm.kubevirt.io/name=vm] [10.179.54.175] [ssh=22/TCP]
            Pod default/vmi [app=vmi,kubevirt.io=virt-launcher,vm.kubevirt.io/name=vmi] [10.209.87.117] []
            Pod default/web [app=web] [10.253.145.179] [http=80/TCP]
        "#]],
    );
}

#[test]
fn any_object_with_a_pod_template_makes_pods() {
    check(
        "
apiVersion: apps.kruise.io/v1alpha1
kind: CloneSet
metadata: {name: web, namespace: shop}
spec: {template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c}]}}}
---
apiVersion: example.com/v1
kind: Ticker
metadata: {name: tick, namespace: shop}
spec: {jobTemplate: {spec: {template: {metadata: {labels: {app: 5}}, spec: {containers: [{name: c}]}}}}}
---
apiVersion: ray.io/v1
kind: RayCluster
metadata: {name: ray, namespace: shop}
spec:
  headGroupSpec: {template: {metadata: {labels: {ray: head}}, spec: {containers: [{name: c}]}}}
  workerGroupSpecs:
  - {groupName: small, template: {metadata: {labels: {ray: small}}, spec: {containers: [{name: c}]}}}
  - {template: {metadata: {labels: {ray: more}}, spec: {containers: [{name: c}]}}}",
        expect![[r#"
            Namespace shop kubernetes.io/metadata.name=shop
            Pod shop/ray-1 [ray=more] [10.241.42.82] []
            Pod shop/ray-headgroupspec [ray=head] [10.190.20.19] []
            Pod shop/ray-small [ray=small] [10.155.188.9] []
            Pod shop/tick [app=5] [10.214.157.157] []
            Pod shop/web [app=web] [10.134.156.248] []
            1: info unknown-kind  
                objects of kind CloneSet.apps.kruise.io are read only for their pod templates
                no action is needed; their controller may add labels that are not known here
            9: error invalid Ticker shop/tick spec.jobTemplate.spec.template.metadata.labels[app]
                expected a string, found the number 5; quote it
                write it in double quotes
            6: info unknown-kind  
                objects of kind Ticker.example.com are read only for their pod templates
                no action is needed; their controller may add labels that are not known here
            11: info unknown-kind  
                objects of kind RayCluster.ray.io are read only for their pod templates
                no action is needed; their controller may add labels that are not known here
        "#]],
    );
}

#[test]
fn objects_that_only_mention_templates_make_no_pods() {
    check(
        "
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: p}
spec: {rules: [{validate: {pattern: {spec: {template: {spec: {containers: [{name: '*'}]}}}}}}]}
---
apiVersion: argoproj.io/v1alpha1
kind: AnalysisTemplate
metadata: {name: t}
spec: {job: {spec: {template: {spec: {containers: [{name: c}]}}}}}
---
apiVersion: work.open-cluster-management.io/v1
kind: ManifestWork
metadata: {name: w}
spec: {workload: {manifests: [{apiVersion: apps/v1, kind: Deployment, spec: {template: {spec: {containers: [{name: c}]}}}}]}}
---
apiVersion: example.com/v1
kind: Rollout
metadata: {name: none}
spec: {template: {spec: {containers: none}}}",
        expect![[r#"
            1: info unknown-kind  
                objects of kind ClusterPolicy.kyverno.io are ignored
                no action is needed, unless it should be a policy
            6: info unknown-kind  
                objects of kind AnalysisTemplate.argoproj.io are ignored
                no action is needed, unless it should be a policy
            11: info unknown-kind  
                objects of kind ManifestWork.work.open-cluster-management.io are ignored
                no action is needed, unless it should be a policy
            16: info unknown-kind  
                objects of kind Rollout.example.com are ignored
                no action is needed, unless it should be a policy
        "#]],
    );
}

#[test]
fn a_rollout_can_use_the_template_of_a_deployment() {
    let rollout = "
apiVersion: argoproj.io/v1alpha1
kind: Rollout
metadata: {name: web}
spec: {workloadRef: {apiVersion: apps/v1, kind: Deployment, name: app}}
";
    let deployment = "---
apiVersion: apps/v1
kind: Deployment
metadata: {name: app}
spec: {replicas: 0, template: {metadata: {labels: {app: web}}}}
";
    check_owners(
        &format!("{rollout}{deployment}"),
        expect![[r#"
        default/deployment/app: default/app
        default/rollout/web: default/app
    "#]],
    );
    check(
        rollout,
        expect![[r#"
        1: warning missing-workload rollout default/web spec.workloadRef
            rollout default/web uses the template of deployment default/app, which is not in the input; its pods are missing
            add the manifest of deployment app
    "#]],
    );
}

#[test]
fn workloads_with_pods_or_owners_get_no_further_pods() {
    check_owners(
        "
apiVersion: argoproj.io/v1alpha1
kind: Rollout
metadata: {name: web}
spec: {template: {spec: {containers: [{name: c}]}}}
---
apiVersion: v1
kind: Pod
metadata: {name: web-5-x, labels: {rollouts-pod-template-hash: '5'}, ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: web-5}]}
---
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: fn}
spec: {template: {spec: {containers: [{image: i}]}}}
---
apiVersion: serving.knative.dev/v1
kind: Revision
metadata: {name: fn-1, ownerReferences: [{apiVersion: serving.knative.dev/v1, kind: Service, name: fn}]}
spec: {containers: [{image: i}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: fn-1-deployment, ownerReferences: [{apiVersion: serving.knative.dev/v1, kind: Revision, name: fn-1}]}
spec: {template: {spec: {containers: [{image: i}]}}}
---
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: sum}
spec: {tasks: [{name: a, template: {spec: {containers: [{name: c}]}}}]}
---
{apiVersion: batch/v1, kind: Job, metadata: {name: sum}}
",
        expect![[r#"
            default/job/sum: default/sum
            default/job.batch.volcano.sh/sum: default/sum-job.batch.volcano.sh
            default/ksvc/fn: default/fn
            default/replicaset/web-5: default/web-5-x
            default/rollout/web: default/web-5-x
        "#]],
    );
}

#[test]
fn pods_with_dns_servers_of_their_own_are_known() {
    let manifests = read(
        "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {dnsPolicy: None, dnsConfig: {nameservers: [10.0.0.1, x, '2001:db8::1', 10.0.0.1]}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: b}, spec: {dnsPolicy: ClusterFirst, dnsConfig: {nameservers: [10.0.0.1]}}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: c}, spec: {template: {spec: {dnsPolicy: None, dnsConfig: {nameservers: [10.0.0.2]}}}}}
",
    );
    let resolvers: Vec<String> =
        manifests.resolvers.iter().map(|(pod, servers)| format!("{pod} {servers:?}")).collect();
    assert_eq!(resolvers, ["default/a [10.0.0.1, 2001:db8::1]", "default/c [10.0.0.2]"]);
}

#[test]
fn declared_ports_can_be_skipped() {
    let pod = "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: m, ports: [{containerPort: 80}]}]}}";
    let ports = |ports: PodDetails| {
        let mut reader = ManifestReader::new().with_pod_details(ports);
        reader.read_file("a.yaml".into(), pod.as_bytes());
        reader.finish().declared.len()
    };
    assert_eq!((ports(PodDetails::Ports), ports(PodDetails::None)), (1, 0));
}
