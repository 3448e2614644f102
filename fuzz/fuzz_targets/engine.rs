//! After any sequence of changes, the engine agrees with the oracle and with a fresh engine.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_engine::{Engine, Locality, Remedy, compile, explain, remedy};
use weir_model::{Change, Object, Program, Verdict, World};

fuzz_target!(|bytes: &[u8]| {
    let (changes, flows) = weir_testkit::changes_from_bytes(bytes);
    let mut engine = Engine::new(Locality::Everywhere);
    let (mut program, mut world) = (Program::default(), World::default());
    for change in changes {
        program.apply(engine.apply([&change]));
        world.apply(change);
    }
    assert_eq!(program, compile(&world, Locality::Everywhere));
    for flow in &flows {
        assert_eq!(program.verdict(flow), weir_oracle::verdict(&world, flow), "{flow}");
        let explanation = explain(&program, flow);
        assert_eq!(explanation.verdict, program.verdict(flow), "{flow}");
        if let Remedy::Add(policies) = remedy(&world, &explanation) {
            let mut mended = world.clone();
            policies.into_iter().for_each(|policy| mended.apply(Change::Put(Object::Policy(policy))));
            assert_eq!(weir_oracle::verdict(&mended, flow), Verdict::Allow, "{flow}");
        }
    }
});
