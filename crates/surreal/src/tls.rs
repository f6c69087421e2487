//! Encrypted connections to a server: rustls with ring, and the authorities that the system trusts, or one that the URL names. The provider is named here,
//! so no program needs to install one for the process.

use posthouse_core::{BoxError, Invalid};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject},
};
use std::sync::Arc;

/// What encrypts connections to servers whose certificates this authority has made, or one of the system's.
pub(crate) fn config(authority: Option<&str>) -> Result<ClientConfig, Invalid> {
    let roots = match authority {
        Some(file) => from_file(file).map_err(|problem| refused(format!("sslrootcert: {file} {problem}")))?,
        None => {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            roots
        }
    };
    if roots.is_empty() {
        return Err(refused(
            "no certificate authorities are installed here; install ca-certificates, or name one in sslrootcert",
        ));
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|problem| refused(format!("tls: cannot be used: {problem}")))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

fn from_file(file: &str) -> Result<RootCertStore, BoxError> {
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(file).map_err(|problem| format!("cannot be read: {problem}"))?;
    for certificate in certificates {
        let certificate = certificate.map_err(|problem| format!("is not in PEM form: {problem}"))?;
        roots
            .add(certificate)
            .map_err(|problem| format!("holds a certificate that cannot be used: {problem}"))?;
    }
    match roots.is_empty() {
        true => Err("holds no certificate in PEM form".into()),
        false => Ok(roots),
    }
}

fn refused(problem: impl Into<String>) -> Invalid {
    Invalid::new("store", problem)
}
