//! The name of each pod and each policy of a node leads to its rules and entries, and back.

use std::{collections::BTreeSet, fmt::Write};

use expect_test::{Expect, expect};
use proptest::prelude::*;
use weir_datapath::{Mode, Planner as _, policy_name};
use weir_engine::{Engine, Locality};
use weir_iptables::{ChainsAndSets, Planner, Step, render, render_policy};
use weir_model::{Change, Direction, IpFamily, PolicyId, PolicyKind, Program};
use weir_testkit::crowded;

/// The lines of `ipset save`, or of iptables-save of a family.
fn lines(rendered: &str, family: Option<IpFamily>) -> Vec<&str> {
    let [sets, v4, v6] = rendered.split("\n\n").collect::<Vec<_>>()[..] else {
        unreachable!("three parts")
    };
    let part = match family {
        None => sets,
        Some(IpFamily::V4) => v4,
        Some(IpFamily::V6) => v6,
    };
    part.lines().collect()
}

/// The lines that contain a name as whole words, as `grep -w` prints them.
fn find<'l>(lines: &[&'l str], name: &str) -> Vec<&'l str> {
    let is_word = |letter: Option<char>| letter.is_some_and(|one| one.is_ascii_alphanumeric());
    let has_name = |line: &&str| {
        line.match_indices(name).any(|(at, _)| {
            let (before, after) = (&line[..at], &line[at + name.len()..]);
            !is_word(before.chars().next_back()) && !is_word(after.chars().next())
        })
    };
    lines.iter().copied().filter(has_name).collect()
}

/// Checks that all names of a program can be found, and that each place that a signpost names exists.
#[track_caller]
fn check_names(program: &Program, rendered: &ChainsAndSets) {
    let text = rendered.to_string();
    let sets = lines(&text, None);
    for (pod, endpoint) in &program.endpoints {
        for address in &endpoint.addresses {
            let rules = lines(&text, Some(IpFamily::from(*address)));
            let found = find(&rules, &pod.to_string());
            assert!(
                found.iter().any(|line| line.contains(&format!(" {address}/"))),
                "{pod}\n{text}"
            );
            let found = find(&sets, &pod.to_string());
            assert!(
                found.iter().any(|line| line.contains(&format!(" {address} "))),
                "{pod}\n{text}"
            );
            for direction in Direction::BOTH {
                let chain = endpoint.rules.chain(direction);
                let isolation = chain.isolation.iter().flatten();
                for section in chain.admin.iter().chain(isolation).chain(&chain.baseline) {
                    let name = policy_name(&section.policy);
                    let expected = format!("\"{name} {direction}: ");
                    let mut found = find(&rules, &name).into_iter();
                    assert!(found.any(|line| line.contains(&expected)), "{name}\n{text}");
                    let leads_here = |line: &str| {
                        let comment = line.strip_suffix('"')?.split_once(&format!("\"{name} "))?;
                        rules.contains(&&*format!(":{} - [0:0]", comment.1)).then_some(())
                    };
                    let found = find(&sets, &name).into_iter().find_map(leads_here);
                    assert!(found.is_some(), "{name}\n{text}");
                }
            }
        }
    }
    let chains = rendered.chains.keys().map(|(_, name)| &**name);
    let names: BTreeSet<&str> = chains.chain(rendered.sets.keys().map(|name| &**name)).collect();
    let words = text.split(|letter: char| letter.is_whitespace() || [',', '"'].contains(&letter));
    for place in
        words.map(|word| word.trim_start_matches(':')).filter(|word| word.contains("KUBE-"))
    {
        assert!(names.contains(place), "{place}\n{text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn each_name_is_found_after_every_change(changes in crowded(), batch in 1_usize..5) {
        let mut engine = Engine::new(Locality::Everywhere);
        let mut program = Program::default();
        let mut planner = Planner::new(Mode::Enforce);
        for some in changes.chunks(batch) {
            let delta = engine.apply(some);
            program.apply(delta.clone());
            planner.plan(&program, &delta);
            check_names(&program, planner.desired());
        }
    }
}

fn program(text: &str) -> Program {
    let mut program = Program::default();
    program.apply(Engine::new(Locality::Node("n1".into())).apply(changes(text)));
    program
}

fn changes(text: &str) -> Vec<Change> {
    let mut reader = weir_api::ManifestReader::new();
    reader.read_file("test".into(), text.as_bytes());
    reader.finish().objects.into_iter().map(Change::Put).collect()
}

fn pod(name: &str, app: &str, address: &str) -> String {
    format!(
        "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: shop, labels: {{app: {app}}}}}, spec: {{nodeName: n1}}, status: {{podIP: {address}}}}}\n"
    )
}

fn policy(name: &str, spec: &str) -> String {
    format!(
        "---\n{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: {name}, namespace: shop}}, spec: {{{spec}}}}}\n"
    )
}

/// Web may reach the database.
const WEB_TO_DB: &str = "podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {matchLabels: {app: web}}}], ports: [{port: 5432}]}]";

#[track_caller]
fn check_found(text: &str, name: &str, expected: Expect) {
    let program = program(text);
    let rendered = render(&program);
    check_names(&program, &rendered);
    let rendered = rendered.to_string();
    let mut found = find(&lines(&rendered, None), name);
    found.extend(find(&lines(&rendered, Some(IpFamily::V4)), name));
    expected.assert_eq(&format!("{}\n", found.join("\n")));
}

#[test]
fn grants_name_their_pod_and_their_policies() {
    let pods = [pod("db", "db", "10.0.0.1"), pod("web", "web", "10.0.0.2")].concat();
    let text = format!("{pods}{}{}", policy("web-to-db", WEB_TO_DB), policy("again", WEB_TO_DB));
    check_found(
        &text,
        "shop/web-to-db",
        expect![[r#"
        add KUBE-DST-GRANTS 10.0.0.1,tcp:5432,10.0.0.2 comment "shop/db by shop/again, shop/web-to-db"
        add KUBE-DST-ISOLATED 10.0.0.1 comment "shop/db isolated by shop/again, shop/web-to-db"
        add inet6:KUBE-DST-POLICIES 1f4:381a:8905:e3a3:f598:b05f:5044:7db9 comment "shop/web-to-db KUBE-NWPLCY-VH2DQGUJAXR2H5MY"
        -A KUBE-NWPLCY-VH2DQGUJAXR2H5MY -m comment --comment "shop/web-to-db ingress: KUBE-DST-GRANTS" -j RETURN
        -A KUBE-POD-FW-5FGDE3HWEHGTAL2O -d 10.0.0.1/32 -m comment --comment "shop/db ingress: KUBE-DST-GRANTS, isolated by shop/again, shop/web-to-db" -j RETURN
    "#]],
    );
    check_found(
        &text,
        "shop/db",
        expect![[r#"
        add KUBE-DST-GRANTS 10.0.0.1,tcp:5432,10.0.0.2 comment "shop/db by shop/again, shop/web-to-db"
        add KUBE-DST-ISOLATED 10.0.0.1 comment "shop/db isolated by shop/again, shop/web-to-db"
        add KUBE-DST-LOCAL 10.0.0.1 comment "shop/db"
        -A KUBE-POD-FW-5FGDE3HWEHGTAL2O -d 10.0.0.1/32 -m comment --comment "shop/db ingress: KUBE-DST-GRANTS, isolated by shop/again, shop/web-to-db" -j RETURN
        -A KUBE-POD-FW-5FGDE3HWEHGTAL2O -s 10.0.0.1/32 -m comment --comment "shop/db egress: not isolated" -j RETURN
    "#]],
    );
    check_found(
        &text,
        "shop/web",
        expect![[r#"
        add KUBE-DST-GRANTS 10.0.0.1,tcp:5432,10.0.0.2 comment "shop/db by shop/again, shop/web-to-db"
        add KUBE-DST-ISOLATED 10.0.0.1 comment "shop/db isolated by shop/again, shop/web-to-db"
        add KUBE-DST-LOCAL 10.0.0.2 comment "shop/web"
        add inet6:KUBE-DST-POLICIES 1f4:381a:8905:e3a3:f598:b05f:5044:7db9 comment "shop/web-to-db KUBE-NWPLCY-VH2DQGUJAXR2H5MY"
        -A KUBE-NWPLCY-VH2DQGUJAXR2H5MY -m comment --comment "shop/web-to-db ingress: KUBE-DST-GRANTS" -j RETURN
        -A KUBE-POD-FW-3HTXO5MY7KROGIVV -d 10.0.0.2/32 -m comment --comment "shop/web ingress: not isolated" -j RETURN
        -A KUBE-POD-FW-3HTXO5MY7KROGIVV -s 10.0.0.2/32 -m comment --comment "shop/web egress: not isolated" -j RETURN
        -A KUBE-POD-FW-5FGDE3HWEHGTAL2O -d 10.0.0.1/32 -m comment --comment "shop/db ingress: KUBE-DST-GRANTS, isolated by shop/again, shop/web-to-db" -j RETURN
    "#]],
    );
}

#[test]
fn merged_policies_are_found_one_by_one() {
    let mut text = pod("db", "db", "10.0.0.1");
    for number in 0..10 {
        let spec = format!(
            "podSelector: {{}}, ingress: [{{ports: [{{port: {}, endPort: {}}}]}}]",
            10 + number,
            20 + number
        );
        text += &policy(&format!("p{number}"), &spec);
    }
    check_found(
        &text,
        "shop/p7",
        expect![[r#"
        add inet6:KUBE-DST-POLICIES 1f7:981:1432:ba9a:f546:a039:94f7:6690 comment "shop/p7 KUBE-NWPLCY-D33QTAIUGK5JV5KG"
        -A KUBE-NWPLCY-D33QTAIUGK5JV5KG -m comment --comment "shop/p7 ingress: KUBE-NWPLCY-OIFVWP2ADELTFUMN" -j RETURN
        -A KUBE-NWPLCY-QBQFLUFTKXX56UXM -m comment --comment "shop/p7 ingress: KUBE-NWPLCY-D33QTAIUGK5JV5KG" -j RETURN
    "#]],
    );
    check_found(
        &text,
        "shop/db",
        expect![[r#"
        add KUBE-DST-ISOLATED 10.0.0.1 comment "shop/db isolated by shop/p0, shop/p1, shop/p2 and 7 more"
        add KUBE-DST-LOCAL 10.0.0.1 comment "shop/db"
        -A KUBE-POD-FW-5FGDE3HWEHGTAL2O -d 10.0.0.1/32 -m comment --comment "shop/db ingress: KUBE-POD-FW-PQS4CPMQ3AQ6OESX, policies: KUBE-NWPLCY-QBQFLUFTKXX56UXM" -j RETURN
        -A KUBE-POD-FW-5FGDE3HWEHGTAL2O -s 10.0.0.1/32 -m comment --comment "shop/db egress: not isolated" -j RETURN
        -A KUBE-POD-FW-PQS4CPMQ3AQ6OESX -m comment --comment "shop/db isolated by shop/p0, shop/p1, shop/p2 and 7 more" -g KUBE-NWPLCY-ISOLATED-INGRESS
    "#]],
    );
}

#[test]
fn long_and_hostile_names_fit_into_comments() {
    let long = "x".repeat(250);
    let text =
        [pod(&long, "db", "10.0.0.1"), policy(&long, WEB_TO_DB), policy("deny", "podSelector: {}")]
            .concat();
    let rendered = render(&program(&text)).to_string();
    let comments: Vec<&str> = rendered.split('"').skip(1).step_by(2).collect();
    assert!(comments.iter().all(|comment| comment.len() <= 255), "{rendered}");
    let name = format!("shop/{}", "x".repeat(200));
    for family in [None, Some(IpFamily::V4)] {
        let lines = lines(&rendered, family);
        assert!(
            lines.iter().any(|line| line.contains(&format!("\"{name} ")) && line.contains("KUBE-"))
        );
    }
    let mut world = program(&pod("db", "db", "10.0.0.1"));
    let (_, endpoint) = world.endpoints.pop_first().expect("a pod");
    world.endpoints.insert(weir_model::PodId::new("a\"\n-F", "é\u{0}'\\"), endpoint);
    let rendered = render(&world).to_string();
    assert!(rendered.contains("comment \"a..-F/....\""), "{rendered}");
}

#[test]
fn signposts_do_not_multiply_pods_with_policies() {
    let mut text = String::new();
    for number in 0..100 {
        text += &pod(&format!("db-{number}"), "db", &format!("10.0.0.{number}"));
        let spec = format!(
            "podSelector: {{}}, ingress: [{{from: [{{ipBlock: {{cidr: 10.{number}.0.0/16}}}}]}}]"
        );
        text += &policy(&format!("p{number}"), &spec);
    }
    let rendered = render(&program(&text));
    let rules: usize = rendered.chains.values().map(Vec::len).sum();
    assert!(rules < 1000, "{rules} rules");
}

#[test]
fn a_new_pod_is_isolated_before_its_signpost_is_written() {
    let mut engine = Engine::new(Locality::Node("n1".into()));
    let mut world = Program::default();
    let mut planner = Planner::new(Mode::Enforce);
    let mut plan = |text: &str| {
        let delta = engine.apply(changes(text));
        world.apply(delta.clone());
        planner.plan(&world, &delta)
    };
    let mut pods = String::new();
    for (number, app) in ["db", "web", "db", "web"].iter().enumerate() {
        write!(pods, "{}", pod(&format!("{app}-{number}"), app, &format!("10.0.0.{number}")))
            .expect("a string");
    }
    plan(&format!("{pods}{}", policy("web-to-db", WEB_TO_DB)));
    let plan = plan(&pod("new", "db", "10.0.0.200"));
    let Some((Step::Restore(script), first)) = plan.steps.split_last() else {
        unreachable!("{plan}")
    };
    assert_eq!((script.chains.len(), script.jumps.len(), script.gone.len()), (1, 0, 0), "{plan}");
    assert!(first.iter().all(|step| !matches!(step, Step::Restore(_))), "{plan}");
}

#[test]
fn a_policy_can_be_rendered_alone() {
    let part = |text: &str, name: &str| {
        let kind = PolicyKind::NetworkPolicy;
        let policy = PolicyId { kind, namespace: "shop".into(), name: name.into() };
        render_policy(&program(text), &policy).map(|part| part.to_string())
    };
    let pods = [pod("db", "db", "10.0.0.1"), pod("web", "web", "10.0.0.2")].concat();
    let block = "podSelector: {matchLabels: {app: web}}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}]}]";
    let dns = "podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {}}], ports: [{port: 53}]}]";
    let text = format!(
        "{pods}{}{}{}",
        policy("web-to-db", WEB_TO_DB),
        policy("dns", dns),
        policy("block", block)
    );
    expect![[r##"
        # ipset save
        create KUBE-DST-GRANTS hash:ip,port,ip family inet maxelem 4294967295 comment
        add KUBE-DST-GRANTS 10.0.0.1,tcp:5432,10.0.0.2 comment "shop/db by shop/web-to-db"
        create KUBE-DST-ISOLATED hash:ip family inet maxelem 4294967295 comment
        add KUBE-DST-ISOLATED 10.0.0.1 comment "shop/db isolated by shop/dns, shop/web-to-db"
        create inet6:KUBE-DST-POLICIES hash:ip family inet6 maxelem 4294967295 comment
        add inet6:KUBE-DST-POLICIES 1f4:381a:8905:e3a3:f598:b05f:5044:7db9 comment "shop/web-to-db KUBE-NWPLCY-VH2DQGUJAXR2H5MY"

        # iptables-save -t filter
        -A KUBE-NWPLCY-VH2DQGUJAXR2H5MY -m comment --comment "shop/web-to-db ingress: KUBE-DST-GRANTS" -j RETURN
        -A KUBE-POD-FW-5FGDE3HWEHGTAL2O -d 10.0.0.1/32 -m comment --comment "shop/db ingress: KUBE-DST-GRANTS, isolated by shop/dns, shop/web-to-db" -j RETURN
        -A KUBE-POD-FW-5FGDE3HWEHGTAL2O -s 10.0.0.1/32 -m comment --comment "shop/db egress: not isolated" -j RETURN
    "##]].assert_eq(&part(&text, "web-to-db").expect("it selects a pod"));
    expect![[r##"
        # ipset save
        create KUBE-DST-ISOLATED hash:ip family inet maxelem 4294967295 comment
        add KUBE-DST-ISOLATED 10.0.0.2 comment "shop/web isolated by shop/block"
        create KUBE-SRC-6Z2DJJUIHDKBAM7Q hash:net family inet maxelem 4294967295
        add KUBE-SRC-6Z2DJJUIHDKBAM7Q 10.0.0.0/8
        add KUBE-SRC-6Z2DJJUIHDKBAM7Q 10.1.0.0/16 nomatch
        create inet6:KUBE-DST-POLICIES hash:ip family inet6 maxelem 4294967295 comment
        add inet6:KUBE-DST-POLICIES 193:120a:1fbe:e0f:452f:e1a8:79be:9391 comment "shop/block KUBE-NWPLCY-J6JRECQ7XYHA6RJP"

        # iptables-save -t filter
        -A KUBE-NWPLCY-J6JRECQ7XYHA6RJP -m comment --comment "shop/block ingress: KUBE-NWPLCY-PALN4M33ZWCWKREO" -j RETURN
        -A KUBE-NWPLCY-PALN4M33ZWCWKREO -m set --match-set KUBE-SRC-6Z2DJJUIHDKBAM7Q src -m comment --comment "shop/block ingress[0].from[0]" -j RETURN
        -A KUBE-NWPLCY-PALN4M33ZWCWKREO -g KUBE-NWPLCY-ISOLATED-INGRESS
        -A KUBE-POD-FW-3HTXO5MY7KROGIVV -d 10.0.0.2/32 -m comment --comment "shop/web ingress: KUBE-POD-FW-K2AJTRP6FGQRICZY, isolated by shop/block" -j RETURN
        -A KUBE-POD-FW-3HTXO5MY7KROGIVV -s 10.0.0.2/32 -m comment --comment "shop/web egress: not isolated" -j RETURN
        -A KUBE-POD-FW-K2AJTRP6FGQRICZY -g KUBE-NWPLCY-PALN4M33ZWCWKREO
        -A KUBE-POD-FW-K2AJTRP6FGQRICZY -m comment --comment "shop/web isolated by shop/block" -g KUBE-NWPLCY-ISOLATED-INGRESS
    "##]].assert_eq(&part(&text, "block").expect("it selects a pod"));
    assert_eq!(part(&text, "other"), None);
    let nothing = policy("nothing", "podSelector: {matchLabels: {app: none}}");
    assert_eq!(part(&format!("{text}{nothing}"), "nothing"), None);
}
