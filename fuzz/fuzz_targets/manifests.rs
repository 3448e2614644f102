//! Reading, linting and compiling any bytes does not panic, and the compiled rules agree with the oracle.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_engine::{Locality, compile};
use weir_model::{Flow, Protocol, World};

fuzz_target!(|bytes: &[u8]| {
    let mut reader = weir_api::ManifestReader::new();
    reader.read_file("fuzz.yaml".into(), bytes);
    let world: World = reader.finish().objects.into_iter().collect();
    weir_lint::lint(&world);
    let program = compile(&world, Locality::Everywhere);
    let addresses = || world.pods.values().flat_map(|pod| pod.addresses.iter().copied()).take(6);
    for (from, to) in addresses().flat_map(|from| addresses().map(move |to| (from, to))) {
        let flow = Flow { from, to, protocol: Protocol::Tcp, port: 80 };
        assert_eq!(program.verdict(&flow), weir_oracle::verdict(&world, &flow), "{flow}");
    }
});
