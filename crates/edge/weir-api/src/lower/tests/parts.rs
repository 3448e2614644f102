use expect_test::expect;

use super::network_policy::check;

#[test]
fn peers_are_selectors_or_a_block() {
    check(
        "
ingress:
- from:
  - podSelector: {matchLabels: {app: web}}
  - namespaceSelector: {}
  - namespaceSelector: {matchLabels: {team: a}}
    podSelector: {}
  - ipBlock: {cidr: 10.0.0.0/8, except: [10.2.0.0/16, 10.1.0.0/16]}",
        expect![[r#"
            NetworkPolicy shop/a Namespace for own/*
              ingress[0] line 6: allow own/app=web, [*]/*, [team=a]/*, 10.0.0.0/8 except 10.1.0.0/16, 10.2.0.0/16 at any port
        "#]],
    );
}

#[test]
fn a_peer_without_a_field_or_with_too_many_is_rejected() {
    check(
        "ingress: [{from: [{}]}]",
        expect![[r#"
            NetworkPolicy shop/a Namespace for own/*
              ingress: no rules
            5: error invalid NetworkPolicy shop/a spec.ingress[0].from[0]
                the peer is empty; expected podSelector, namespaceSelector or ipBlock
                to allow everyone, remove the list of peers
        "#]],
    );
    check(
        "ingress: [{from: [{podSelector: }]}]",
        expect![[r#"
            NetworkPolicy shop/a Namespace for own/*
              ingress: no rules
            5: error invalid NetworkPolicy shop/a spec.ingress[0].from[0]
                the peer is empty; expected podSelector, namespaceSelector or ipBlock
                to allow everyone, remove the list of peers
        "#]],
    );
    check(
        "ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8}, podSelector: {}}]}]",
        expect![[r#"
            NetworkPolicy shop/a Namespace for own/*
              ingress: no rules
            5: error invalid NetworkPolicy shop/a spec.ingress[0].from[0]
                an ipBlock cannot be combined with a selector
                make them two peers: begin the ipBlock with its own `- `
        "#]],
    );
    check(
        "ingress: [{from: [{ipBlock: {}}]}]",
        expect![[r#"
            NetworkPolicy shop/a Namespace for own/*
              ingress: no rules
            5: error invalid NetworkPolicy shop/a spec.ingress[0].from[0].ipBlock.cidr
                an ipBlock needs a cidr
                add `cidr:`, such as 10.0.0.0/8
        "#]],
    );
}

#[test]
fn ports_are_numbers_ranges_names_or_all_of_a_protocol() {
    check(
        "
ingress:
- ports:
  - {}
  - protocol: UDP
  - {protocol: SCTP, port: 7000}
  - {port: 80, endPort: 80}
  - {port: 80, endPort: 90}
  - port: http
  - {port: dns, protocol: UDP}
  -",
        expect![[r#"
            NetworkPolicy shop/a Namespace for own/*
              ingress[0] line 6: allow anyone at TCP, UDP, 7000/SCTP, 80/TCP, 80-90/TCP, "http"/TCP, "dns"/UDP, TCP
        "#]],
    );
}

#[test]
fn an_invalid_port_is_rejected() {
    check(
        "
ingress:
- ports:
  - port: 0
  - port: 65536
  - port: \"80\"
  - port: Http
  - port: 80.5
  - port: [80]
  - protocol: ICMP
  - protocol: tcp
  - endPort: 80
  - {port: http, endPort: 80}
  - {port: 80, endPort: 79}
  - {port: 80, endPort: 65536}
  - {port: 80, endPort: \"90\"}",
        expect![[r#"
            NetworkPolicy shop/a Namespace for own/*
              ingress: no rules
            7: error invalid NetworkPolicy shop/a spec.ingress[0].ports[0].port
                expected a whole number from 1 to 65535, found the number 0
                choose a number from 1 to 65535
            8: error invalid NetworkPolicy shop/a spec.ingress[0].ports[1].port
                expected a whole number from 1 to 65535, found the number 65536
                choose a number from 1 to 65535
            9: error invalid NetworkPolicy shop/a spec.ingress[0].ports[2].port
                "80" is not a valid port name: expected at most 15 lower case letters, digits and single `-` inside, with at least one letter
                write a port number without quotes
            10: error invalid NetworkPolicy shop/a spec.ingress[0].ports[3].port
                "Http" is not a valid port name: expected at most 15 lower case letters, digits and single `-` inside, with at least one letter
                use the name of the container port
            11: error invalid NetworkPolicy shop/a spec.ingress[0].ports[4].port
                expected a whole number from 1 to 65535, found the number 80.5
                choose a number from 1 to 65535
            12: error invalid NetworkPolicy shop/a spec.ingress[0].ports[5].port
                expected a number from 1 to 65535, found a list
                write a number
            13: error invalid NetworkPolicy shop/a spec.ingress[0].ports[6].protocol
                expected TCP, UDP or SCTP, found the string "ICMP"
                write TCP, UDP or SCTP
            14: error invalid NetworkPolicy shop/a spec.ingress[0].ports[7].protocol
                expected TCP, UDP or SCTP, found the string "tcp"
                did you mean `TCP`?
            15: error invalid NetworkPolicy shop/a spec.ingress[0].ports[8].endPort
                endPort needs a port as the start of the range
                add `port:`, or remove `endPort:`
            16: error invalid NetworkPolicy shop/a spec.ingress[0].ports[9].endPort
                endPort needs a port number, not a name
                write the port as a number, or remove `endPort:`
            17: error invalid NetworkPolicy shop/a spec.ingress[0].ports[10].endPort
                endPort 79 is below the port 80
                swap the two, or remove `endPort:`
            18: error invalid NetworkPolicy shop/a spec.ingress[0].ports[11].endPort
                expected a whole number from 1 to 65535, found the number 65536
                choose a number from 1 to 65535
            19: error invalid NetworkPolicy shop/a spec.ingress[0].ports[12].endPort
                expected a number from 1 to 65535, found the string "90"
                write the number without quotes
        "#]],
    );
}

#[test]
fn blocks_are_checked_and_old_spellings_are_accepted() {
    check(
        "
egress:
- to:
  - ipBlock: {cidr: 10.1.2.3/8, except: [010.1.0.0/16]}
  - ipBlock: {cidr: \"::ffff:10.0.0.0/104\"}
  - ipBlock: {cidr: \"FD00::/8\"}",
        expect![[r#"
            NetworkPolicy shop/a Namespace for own/*
              ingress: no rules
              egress[0] line 6: allow 10.0.0.0/8 except 10.1.0.0/16, 10.0.0.0/8, fd00::/8 at any port
            7: warning loose-cidr NetworkPolicy shop/a spec.egress[0].to[0].ipBlock.cidr
                "10.1.2.3/8" has bits set after the prefix; it is read as 10.0.0.0/8, and newer API servers reject it
                write 10.0.0.0/8
            7: warning loose-cidr NetworkPolicy shop/a spec.egress[0].to[0].ipBlock.except[0]
                "010.1.0.0/16" has leading zeros; it is read as 10.1.0.0/16, and newer API servers reject it
                write 10.1.0.0/16
            8: warning loose-cidr NetworkPolicy shop/a spec.egress[0].to[1].ipBlock.cidr
                "::ffff:10.0.0.0/104" has IPv4 written as IPv6; it is read as 10.0.0.0/8, and newer API servers reject it
                write 10.0.0.0/8
        "#]],
    );
    check(
        "
egress:
- to:
  - ipBlock: {cidr: 10.0.0.0/8, except: [11.0.0.0/16, 10.0.0.0/8, \"fd00::/16\", nonsense]}
  - ipBlock: {cidr: 10.0.0.1}
  - ipBlock: {cidr: }",
        expect![[r#"
            NetworkPolicy shop/a Namespace for own/*
              ingress: no rules
              egress: no rules
            7: error invalid NetworkPolicy shop/a spec.egress[0].to[0].ipBlock.except[0]
                11.0.0.0/16 is not a proper part of the cidr 10.0.0.0/8
                write a smaller network inside the cidr, or remove it
            7: error invalid NetworkPolicy shop/a spec.egress[0].to[0].ipBlock.except[1]
                10.0.0.0/8 is not a proper part of the cidr 10.0.0.0/8
                write a smaller network inside the cidr, or remove it
            7: error invalid NetworkPolicy shop/a spec.egress[0].to[0].ipBlock.except[2]
                fd00::/16 is not a proper part of the cidr 10.0.0.0/8
                write a smaller network inside the cidr, or remove it
            7: error invalid NetworkPolicy shop/a spec.egress[0].to[0].ipBlock.except[3]
                "nonsense" is not a network in CIDR notation
                write a network such as 10.0.0.0/8 or fd00::/8
            8: error invalid NetworkPolicy shop/a spec.egress[0].to[1].ipBlock.cidr
                "10.0.0.1" is not a network in CIDR notation
                write a network such as 10.0.0.0/8 or fd00::/8
            9: error invalid NetworkPolicy shop/a spec.egress[0].to[2].ipBlock.cidr
                an ipBlock needs a cidr
                add `cidr:`, such as 10.0.0.0/8
        "#]],
    );
}

#[test]
fn selectors_have_labels_and_expressions() {
    check(
        "
podSelector:
  matchLabels: {app: web, empty: }
  matchExpressions:
  - {key: tier, operator: In, values: [a, b]}
  - {key: tier, operator: NotIn, values: [c]}
  - {key: x, operator: Exists}
  - {key: z, operator: DoesNotExist, values: []}",
        expect![[r#"
            NetworkPolicy shop/a Namespace for own/app=web,empty=,tier=a|b,tier!=c,x,!z
              ingress: no rules
        "#]],
    );
}

#[test]
fn an_invalid_selector_selects_every_pod() {
    check(
        "
podSelector:
  matchExpressions:
  - {key: tier, operator: In}
  - {key: tier, operator: Gt, values: [\"1\"]}
  - {key: x, operator: Exists, values: [a]}
  - {operator: Exists}
  - {key: \"a b\"}
ingress: [{}]",
        expect![[r#"
            NetworkPolicy shop/a Namespace for own/*
              ingress: no rules
            7: error invalid NetworkPolicy shop/a spec.podSelector.matchExpressions[0].values
                In and NotIn need at least one value
                add `values:`
            8: error invalid NetworkPolicy shop/a spec.podSelector.matchExpressions[1].operator
                expected In, NotIn, Exists or DoesNotExist, found the string "Gt"
                write In, NotIn, Exists or DoesNotExist
            9: error invalid NetworkPolicy shop/a spec.podSelector.matchExpressions[2].values
                Exists and DoesNotExist take no values
                remove `values:`
            10: error invalid NetworkPolicy shop/a spec.podSelector.matchExpressions[3].key
                a label expression needs a key
                add `key:`
            11: error invalid NetworkPolicy shop/a spec.podSelector.matchExpressions[4].key
                "a b" is not a valid label key: expected at most 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both ends, after an optional DNS name and `/`
                correct the key
            11: error invalid NetworkPolicy shop/a spec.podSelector.matchExpressions[4].operator
                a label expression needs an operator
                add `operator:` with In, NotIn, Exists or DoesNotExist
        "#]],
    );
    check(
        "podSelector: {matchLabels: {app: yes, version: 1.0, port: 80}}",
        expect![[r#"
        NetworkPolicy shop/a Namespace for own/*
          ingress: no rules
        5: error invalid NetworkPolicy shop/a spec.podSelector.matchLabels[app]
            expected a string, found the boolean yes; quote it
            write it in double quotes
        5: error invalid NetworkPolicy shop/a spec.podSelector.matchLabels[version]
            expected a string, found the number 1.0; quote it
            write it in double quotes
        5: error invalid NetworkPolicy shop/a spec.podSelector.matchLabels[port]
            expected a string, found the number 80; quote it
            write it in double quotes
    "#]],
    );
    check(
        "podSelector: {matchLabels: {app: \"a b\", \"-x\": y}}",
        expect![[r#"
            NetworkPolicy shop/a Namespace for own/*
              ingress: no rules
            5: error invalid NetworkPolicy shop/a spec.podSelector.matchLabels[app]
                "a b" is not a valid label value: expected at most 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both ends, or nothing
                correct the value
            5: error invalid NetworkPolicy shop/a spec.podSelector.matchLabels
                "-x" is not a valid label key: expected at most 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both ends, after an optional DNS name and `/`
                correct the key
            5: error invalid NetworkPolicy shop/a spec.podSelector.matchLabels[-x]
                expected a string, found the boolean y; quote it
                write it in double quotes
        "#]],
    );
    check(
        "podSelector: {matchLabel: {app: web}}",
        expect![[r#"
        NetworkPolicy shop/a Namespace for own/*
          ingress: no rules
        5: error unknown-field NetworkPolicy shop/a spec.podSelector.matchLabel
            there is no field "matchLabel" here; expected matchLabels, matchExpressions
            did you mean `matchLabels`?
    "#]],
    );
    check(
        "podSelector: {}\npodSelector: {matchLabels: {app: web}}",
        expect![[r#"
            NetworkPolicy shop/a Namespace for own/*
              ingress: no rules
              egress: no rules
            6: error duplicate-key  
                the key "podSelector" occurs twice, in lines 5 and 6
                remove one of the two
        "#]],
    );
    check(
        "podSelector: {matchExpressions: [{key: y, operator: Exists}]}",
        expect![[r#"
        NetworkPolicy shop/a Namespace for own/*
          ingress: no rules
        5: error invalid NetworkPolicy shop/a spec.podSelector.matchExpressions[0].key
            expected a string, found the boolean y; quote it
            write it in double quotes
    "#]],
    );
    check(
        "podSelector: web",
        expect![[r#"
        NetworkPolicy shop/a Namespace for own/*
          ingress: no rules
        5: error invalid NetworkPolicy shop/a spec.podSelector
            expected a mapping, found the string "web"
            write `field: value` lines here
    "#]],
    );
}
