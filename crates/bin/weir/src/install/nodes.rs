//! The state of every node, as its agent reports it.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::Value;
use weir_kube::{AdminClient, ApiError, PodCommand};

use crate::present::{
    style::{BAD, GOOD, Painted, STRONG},
    table::{self, Cell},
};

/// The most problems of a node that the text lists.
const MAX_PROBLEMS: usize = 10;

/// A node.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeState {
    node: String,
    /// The pod of the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pod: Option<String>,
    /// The answer of the agent.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    agent: Option<AgentState>,
    /// Why the node is not ready, and what it lacks.
    problems: Vec<String>,
}

/// The answer of an agent.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct AgentState {
    version: String,
    datapath: String,
    mode: String,
    ready: bool,
    in_sync: bool,
    /// The policies that isolate their pods and allow nothing.
    held: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    drops: Option<u64>,
}

impl NodeState {
    pub(crate) fn is_ready(&self) -> bool {
        self.agent.as_ref().is_some_and(|agent| agent.ready)
    }
}

/// The agents of a cluster.
#[derive(Debug, Default)]
pub(crate) struct AgentPods {
    /// Those that run.
    pub(crate) running: Vec<AgentPod>,
    /// The nodes without a running agent, and the reason.
    pub(crate) away: Vec<(String, String)>,
    /// Why nodes without a pod of an agent are not known, if they are not.
    pub(crate) nodes_unknown: Option<String>,
}

/// The pod of a running agent.
#[derive(Debug)]
pub(crate) struct AgentPod {
    pub(crate) node: String,
    pod: Value,
}

impl AgentPod {
    /// The program weir with these words, which asks the agent of this pod.
    pub(crate) fn command(&self, namespace: &str, words: &[String]) -> PodCommand {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        command(namespace, &self.pod, &words)
    }
}

/// Lists the agents, and the nodes without one.
pub(crate) fn agents(client: &AdminClient, namespace: &str) -> Result<AgentPods, ApiError> {
    let selector = "labelSelector=app.kubernetes.io%2Fname%3Dweir";
    let pods = client.list(&format!("/api/v1/namespaces/{namespace}/pods?{selector}"))?;
    let mut agents = AgentPods::default();
    for pod in pods.into_iter().filter(is_agent) {
        let node = text(&pod["spec"]["nodeName"]);
        match not_running(&pod) {
            None => agents.running.push(AgentPod { node, pod }),
            Some(reason) => agents.away.push((node, reason)),
        }
    }
    let runs = |agents: &AgentPods, node: &str| agents.running.iter().any(|one| one.node == node);
    let stopped = std::mem::take(&mut agents.away);
    agents.away = stopped.into_iter().filter(|(node, _)| !runs(&agents, node)).collect();
    let nodes = client.list("/api/v1/nodes").unwrap_or_else(|error| {
        agents.nodes_unknown = Some(format!("{:#}", anyhow::Error::new(error)));
        Vec::new()
    });
    for node in nodes {
        let name = text(&node["metadata"]["name"]);
        if !runs(&agents, &name) && !agents.away.iter().any(|(known, _)| *known == name) {
            agents.away.push((name, "no agent runs on this node".into()));
        }
    }
    Ok(agents)
}

/// Reads all nodes, and the status of each agent through the API server. This runs `weir status` in the
/// pods, because the agents listen on the loopback interface of their nodes only.
pub(crate) fn read(client: &AdminClient, namespace: &str) -> Result<Vec<NodeState>, ApiError> {
    let nodes = client.list("/api/v1/nodes")?;
    let selector = "labelSelector=app.kubernetes.io%2Fname%3Dweir";
    let pods = client.list(&format!("/api/v1/namespaces/{namespace}/pods?{selector}"))?;
    let agents: Vec<&Value> = pods.iter().filter(|pod| is_agent(pod)).collect();
    let running: Vec<&Value> =
        agents.iter().copied().filter(|pod| not_running(pod).is_none()).collect();
    let commands: Vec<PodCommand> =
        running.iter().map(|pod| status_command(namespace, pod)).collect();
    let answers = client.run(&commands);
    let answered: Vec<(&Value, Result<String, ApiError>)> =
        running.into_iter().zip(answers).collect();
    let mut states: Vec<NodeState> = Vec::new();
    for node in &nodes {
        let name = text(&node["metadata"]["name"]);
        let on_node = |pod: &&&Value| pod["spec"]["nodeName"] == *name;
        let mut state =
            NodeState { node: name.clone(), pod: None, agent: None, problems: Vec::new() };
        match agents.iter().find(on_node) {
            None => state.problems.push("no agent runs on this node".into()),
            Some(pod) => {
                state.pod = Some(text(&pod["metadata"]["name"]));
                match answered.iter().find(|(one, _)| *one == *pod) {
                    None => state.problems.extend(not_running(pod)),
                    Some((_, answer)) => state.add_answer(answer),
                }
            }
        }
        states.push(state);
    }
    states.sort_by(|one, other| one.node.cmp(&other.node));
    Ok(states)
}

impl NodeState {
    fn add_answer(&mut self, answer: &Result<String, ApiError>) {
        let answer = match answer {
            Err(error) => {
                let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
                let cause = cause.unwrap_or_default();
                return self.problems.push(format!("does not answer: {error}{cause}"));
            }
            Ok(answer) => answer,
        };
        let Ok(status) = serde_json::from_str::<Value>(answer) else {
            return self.problems.push("does not answer: the agent has not started".into());
        };
        let list = |name: &str| status[name].as_array().cloned().unwrap_or_default();
        let mut problems: Vec<String> = list("reasons").iter().map(text).collect();
        problems.extend(list("warnings").iter().map(text));
        let pair = |one: &Value, a: &str, b: &str| format!("{}: {}", text(&one[a]), text(&one[b]));
        let held = list("lockedDown");
        problems.extend(held.iter().map(|one| pair(one, "policy", "reason")));
        problems.extend(list("leftovers").iter().map(|one| pair(one, "owner", "hint")));
        let unavailable = status["staged"]["reportsUnavailable"].as_str();
        let unreported =
            |why: &str| format!("what staged policies would deny is not reported: {why}");
        problems.extend(unavailable.map(unreported));
        let mut seen = std::collections::BTreeSet::new();
        problems.retain(|problem| seen.insert(problem.clone()));
        // The agent for opflex-agent has another form.
        let in_sync = status["source"]["inSync"] == true || status["inSync"] == true;
        let ready = status["ready"].as_bool().unwrap_or(in_sync && list("reasons").is_empty());
        self.agent = Some(AgentState {
            version: text(&status["version"]),
            datapath: text(&status["datapath"]),
            mode: text(&status["mode"]),
            ready,
            in_sync,
            held: held.len(),
            drops: status["drops"].as_u64(),
        });
        self.problems.extend(problems);
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or("-").to_owned()
}

fn is_agent(pod: &Value) -> bool {
    let component = &pod["metadata"]["labels"]["app.kubernetes.io/component"];
    component == "agent" || component == "windows"
}

/// Why the agent of a pod does not run.
fn not_running(pod: &Value) -> Option<String> {
    let statuses = pod["status"]["containerStatuses"].as_array();
    let agent = statuses.into_iter().flatten().find(|one| one["name"] == "agent");
    let Some(agent) = agent else {
        return Some(format!("the pod is {}", text(&pod["status"]["phase"])));
    };
    if agent["state"]["running"].is_object() {
        // False until the startup probe has succeeded.
        let waits =
            "the agent has not started: its log says why, for example that another one runs";
        return (agent["started"] == false).then(|| waits.to_owned());
    }
    let waiting = &agent["state"]["waiting"];
    let ended = &agent["lastState"]["terminated"]["message"];
    let reason = waiting["reason"].as_str().unwrap_or("the agent does not run");
    let detail = ended.as_str().or(waiting["message"].as_str()).unwrap_or_default();
    let detail = detail.trim().lines().last().unwrap_or_default();
    Some(if detail.is_empty() { reason.to_owned() } else { format!("{reason}: {detail}") })
}

/// The command that prints the status of an agent.
fn status_command(namespace: &str, pod: &Value) -> PodCommand {
    command(namespace, pod, &["status", "--output=json"])
}

/// A command that asks the agent of a pod.
fn command(namespace: &str, pod: &Value, words: &[&str]) -> PodCommand {
    let is_windows = pod["metadata"]["labels"]["app.kubernetes.io/component"] == "windows";
    let program = if is_windows { "weir.exe" } else { "/usr/local/bin/weir" };
    let mut command = vec![program.to_owned()];
    command.extend(words.iter().map(|word| (*word).to_owned()));
    let arguments = pod["spec"]["containers"][0]["args"].as_array();
    let arguments = arguments.into_iter().flatten().filter_map(Value::as_str);
    let address = arguments.filter_map(|one| one.strip_prefix("--http=")).next();
    let asks_agent = words.first() != Some(&"version");
    command.extend(address.filter(|_| asks_agent).map(|address| format!("--agent={address}")));
    PodCommand {
        namespace: namespace.into(),
        pod: text(&pod["metadata"]["name"]),
        container: "agent".into(),
        command,
    }
}

/// Writes a table of all nodes, and their problems below it.
pub(crate) fn write(out: &mut dyn Write, nodes: &[NodeState]) -> io::Result<()> {
    let head = ["NODE", "VERSION", "DATAPATH", "MODE", "READY", "IN SYNC", "HELD", "DROPS"];
    let mut rows = vec![head.map(|title| Cell::new(title, STRONG)).to_vec()];
    let yes_no = |yes: bool| {
        if yes { Cell::new("yes", GOOD) } else { Cell::new("no", BAD) }
    };
    for state in nodes {
        let mut row: Vec<Cell> = vec![(&state.node).into()];
        match &state.agent {
            None => {
                row.extend(["-", "-", "-"].map(Cell::from));
                row.push(Cell::new("no answer", BAD));
            }
            Some(agent) => {
                row.extend([&agent.version, &agent.datapath, &agent.mode].map(Cell::from));
                row.extend([yes_no(agent.ready), yes_no(agent.in_sync), agent.held.into()]);
                row.push(agent.drops.map_or("-".into(), |drops| drops.into()));
            }
        }
        rows.push(row);
    }
    table::write(out, 0, &rows)?;
    for state in nodes.iter().filter(|state| !state.problems.is_empty()) {
        writeln!(out, "{}", Painted(STRONG, Cell::from(&state.node).text()))?;
        for problem in state.problems.iter().take(MAX_PROBLEMS) {
            writeln!(out, "  {}", Cell::from(problem).text())?;
        }
        let more = state.problems.len().saturating_sub(MAX_PROBLEMS);
        if more > 0 {
            writeln!(
                out,
                "  and {more} more: `weir status` in pod {}",
                text(&state.pod.clone().into())
            )?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use serde_json::json;

    use super::*;

    fn node(name: &str) -> NodeState {
        NodeState { node: name.into(), pod: None, agent: None, problems: Vec::new() }
    }

    #[test]
    fn the_table_has_every_node_and_its_problems() {
        let mut ready = node("n1");
        let status = json!({
            "ready": true, "reasons": [], "version": "0.1.0", "datapath": "nftables",
            "mode": "enforce", "source": {"inSync": true}, "drops": 12,
            "warnings": ["net.bridge.bridge-nf-call-iptables is 0"],
            "lockedDown": [{"policy": "NetworkPolicy a/b", "reason": "too large"}],
            "leftovers": [{"owner": "Calico", "hint": "remove it"}],
            "staged": {"reportsUnavailable": "the agent runs with `--flows off`"},
        });
        ready.add_answer(&Ok(status.to_string()));
        let mut silent = node("n2\u{1b}[2J");
        silent.add_answer(&Err(ApiError::Unauthorized));
        let mut starting = node("n3");
        starting.add_answer(&Ok(String::new()));
        let mut out = Vec::new();
        write(&mut out, &[ready, silent, starting]).expect("memory");
        let text = anstream::adapter::strip_str(&String::from_utf8_lossy(&out)).to_string();
        expect![[r#"
            NODE         VERSION  DATAPATH  MODE     READY      IN SYNC  HELD  DROPS
            n1           0.1.0    nftables  enforce  yes        yes      1     12
            n2\u{1b}[2J  -        -         -        no answer
            n3           -        -         -        no answer
            n1
              net.bridge.bridge-nf-call-iptables is 0
              NetworkPolicy a/b: too large
              Calico: remove it
              what staged policies would deny is not reported: the agent runs with `--flows off`
            n2\u{1b}[2J
              does not answer: the API server does not accept the credentials
            n3
              does not answer: the agent has not started
        "#]]
        .assert_eq(&text);
    }

    #[test]
    fn a_pod_says_why_its_agent_does_not_run() {
        let pod = |state: Value| {
            let one = json!({"name": "agent", "state": state, "started": true,
                "lastState": {"terminated": {"message": "starting\nerror: no nf_tables\n"}}});
            not_running(&json!({"status": {"phase": "Running", "containerStatuses": [one]}}))
        };
        assert_eq!(pod(json!({"running": {}})), None);
        assert_eq!(
            pod(json!({"waiting": {"reason": "CrashLoopBackOff"}})).as_deref(),
            Some("CrashLoopBackOff: error: no nf_tables")
        );
        let waiting = json!({"name": "agent", "state": {"running": {}}, "started": false});
        let waiting = not_running(&json!({"status": {"containerStatuses": [waiting]}}));
        assert!(waiting.is_some_and(|reason| reason.starts_with("the agent has not started")));
        let pending = not_running(&json!({"status": {"phase": "Pending"}}));
        assert_eq!(pending.as_deref(), Some("the pod is Pending"));
    }

    #[test]
    fn the_status_is_requested_at_the_address_of_the_agent() {
        let pod = json!({
            "metadata": {"name": "p", "labels": {}},
            "spec": {"containers": [{"args": ["agent", "--http=127.0.0.1:9999"]}]},
        });
        let command = status_command("n", &pod).command.join(" ");
        assert_eq!(command, "/usr/local/bin/weir status --output=json --agent=127.0.0.1:9999");
    }
}
