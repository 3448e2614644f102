//! Random tokens and keys.

use std::io;

use ring::{
    rand::{SecureRandom, SystemRandom},
    signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair},
};

/// A random token.
pub(crate) fn random_token() -> io::Result<String> {
    let mut bytes = [0; 16];
    SystemRandom::new().fill(&mut bytes).map_err(|_| io::Error::other("no random numbers"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The key that the API server signs tokens with, and the key that it verifies them with, as PEM.
pub(crate) fn signing_keys() -> io::Result<[String; 2]> {
    use base64::Engine;
    /// The DER header of a public key on the curve P-256.
    const POINT: [u8; 26] = [
        0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08,
        0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
    ];
    let (random, kind) = (SystemRandom::new(), &ECDSA_P256_SHA256_ASN1_SIGNING);
    let fail = |_| io::Error::other("cannot generate a key");
    let private = EcdsaKeyPair::generate_pkcs8(kind, &random).map_err(fail)?;
    let pair = EcdsaKeyPair::from_pkcs8(kind, private.as_ref(), &random)
        .map_err(|error| io::Error::other(error.to_string()))?;
    let public = [&POINT, pair.public_key().as_ref()].concat();
    let pem = |label: &str, bytes: &[u8]| {
        let text = base64::engine::general_purpose::STANDARD.encode(bytes);
        format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n")
    };
    Ok([pem("PRIVATE KEY", private.as_ref()), pem("PUBLIC KEY", &public)])
}
