//! Encrypted connections: rustls with ring, and the authorities that the system trusts.

use posthouse_core::Invalid;
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject},
};
use std::sync::{Arc, OnceLock};

/// The configuration of one client. `authorities` are trusted besides the system's; PEM.
pub(super) fn config(encrypted: bool, authorities: &[Vec<u8>]) -> Result<ClientConfig, Invalid> {
    let roots = match (encrypted, authorities) {
        // Never used, and reading them takes a while.
        (false, _) => Arc::new(RootCertStore::empty()),
        (true, []) => system(),
        (true, authorities) => Arc::new(with(&system(), authorities)?),
    };
    if encrypted && roots.is_empty() {
        let problem =
            "no certificate authorities are installed here; install ca-certificates, or name one in authority";
        return Err(Invalid::new("url", problem));
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder
        .with_safe_default_protocol_versions()
        .map_err(|e| Invalid::new("url", format!("no TLS with this build: {e}")))?;
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// Read once: a hundred files and more.
fn system() -> Arc<RootCertStore> {
    static SYSTEM: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    let read = || {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        Arc::new(roots)
    };
    SYSTEM.get_or_init(read).clone()
}

fn with(system: &RootCertStore, authorities: &[Vec<u8>]) -> Result<RootCertStore, Invalid> {
    let refused = || Invalid::new("authority", "is not a certificate in PEM form");
    let mut roots = system.clone();
    for pem in authorities {
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        let certificates = certificates.map_err(|_| refused())?;
        if certificates.is_empty() {
            return Err(refused());
        }
        for certificate in certificates {
            roots.add(certificate).map_err(|_| refused())?;
        }
    }
    Ok(roots)
}
