//! Reading any bytes as policy tests does not panic, and the oracle evaluates every probe.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_model::World;

fuzz_target!(|bytes: &[u8]| {
    for case in weir_api::cases("fuzz.yaml".into(), bytes) {
        let world: World = case.objects.iter().cloned().collect();
        for flow in case.probes.iter().filter_map(|probe| probe.flow(&world).ok()) {
            weir_oracle::verdict(&world, &flow);
        }
    }
});
