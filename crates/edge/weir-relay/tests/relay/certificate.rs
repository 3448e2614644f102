//! A certificate for the loopback address and the relays of the chart.

use base64::Engine;
use ring::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair},
};

/// ecdsa-with-SHA256.
const ALGORITHM: [u8; 12] =
    [0x30, 0x0a, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];
/// The DER header of a public key on the curve P-256.
const POINT: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
    0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// The name of the relays that the chart installs.
const SERVICE: &str = "weir-relay.weir-system.svc";

fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let mut bytes = vec![tag];
    match content.len() {
        length @ ..0x80 => bytes.push(length as u8),
        length @ ..0x100 => bytes.extend([0x81, length as u8]),
        length => bytes.extend([0x82, (length >> 8) as u8, length as u8]),
    }
    bytes.extend(content);
    bytes
}

fn pem(label: &str, bytes: &[u8]) -> String {
    let text = base64::engine::general_purpose::STANDARD.encode(bytes);
    let lines: Vec<&str> =
        text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

/// A certificate that signs itself, and its key, as PEM.
pub(crate) fn certificate() -> [String; 2] {
    let (random, kind) = (SystemRandom::new(), &ECDSA_P256_SHA256_ASN1_SIGNING);
    let private = EcdsaKeyPair::generate_pkcs8(kind, &random).unwrap();
    let pair = EcdsaKeyPair::from_pkcs8(kind, private.as_ref(), &random).unwrap();
    let common_name = der(0x30, &[&[0x06, 0x03, 0x55, 0x04, 0x03], &der(0x0c, &[b"relay"])]);
    let name = der(0x30, &[&der(0x31, &[&common_name])]);
    let times = [der(0x17, &[b"200101000000Z"]), der(0x17, &[b"491231235959Z"])];
    let [address, service] = [der(0x87, &[&[127, 0, 0, 1]]), der(0x82, &[SERVICE.as_bytes()])];
    let names = der(0x30, &[&address, &service]);
    let alternative = der(0x30, &[&[0x06, 0x03, 0x55, 0x1d, 0x11], &der(0x04, &[&names])]);
    let to_sign = der(
        0x30,
        &[
            &[0xa0, 0x03, 0x02, 0x01, 0x02, 0x02, 0x01, 0x01],
            &ALGORITHM,
            &name,
            &der(0x30, &[&times[0], &times[1]]),
            &name,
            &[&POINT[..], pair.public_key().as_ref()].concat(),
            &der(0xa3, &[&der(0x30, &[&alternative])]),
        ],
    );
    let signature = pair.sign(&random, &to_sign).unwrap();
    let signature = der(0x03, &[&[0], signature.as_ref()]);
    let certificate = der(0x30, &[&to_sign, &ALGORITHM, &signature]);
    [pem("CERTIFICATE", &certificate), pem("PRIVATE KEY", private.as_ref())]
}
