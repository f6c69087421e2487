//! TLS by rustls, with ring doing the arithmetic. The provider is named here, so no program needs to install one for the process.

use posthouse_core::BoxError;
use rustls::{
    ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor, verify_server_name,
    },
    crypto::{WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
    server::ParsedCertificate,
};
use std::{path::Path, sync::Arc};

use crate::tls::{Connector, Trust};

/// What encrypts connections to servers that are trusted like this. An error names the parameter.
pub(crate) fn connector(trust: Trust, file: Option<&Path>) -> Result<Connector, String> {
    let provider = ring::default_provider();
    let judge = Judge {
        roots: match (trust, file) {
            (Trust::Any, _) => None,
            (_, Some(file)) => Some(from_file(file).map_err(|e| format!("sslrootcert: {} {e}", file.display()))?),
            (_, None) => Some(from_system()?),
        },
        names: trust == Trust::Host,
        algorithms: provider.signature_verification_algorithms,
    };
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .map_err(|e| format!("sslmode: TLS cannot be used: {e}"))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(judge))
        .with_no_client_auth();
    // What `sslnegotiation=direct` needs.
    config.alpn_protocols = vec![b"postgresql".to_vec()];
    Ok(Connector::new(config))
}

fn from_file(file: &Path) -> Result<RootCertStore, BoxError> {
    let certificates = CertificateDer::pem_file_iter(file).map_err(|e| format!("cannot be read: {e}"))?;
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        let certificate = certificate.map_err(|e| format!("is not in PEM form: {e}"))?;
        roots
            .add(certificate)
            .map_err(|e| format!("holds a certificate that cannot be used: {e}"))?;
    }
    if roots.is_empty() {
        return Err("holds no certificate in PEM form".into());
    }
    Ok(roots)
}

fn from_system() -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(
            "sslmode: this system trusts no authority (on Debian: apt-get install ca-certificates); \
                    name a file of your own with sslrootcert"
                .to_owned(),
        );
    }
    Ok(roots)
}

/// Decides about a server's certificate. That the server has its key is always checked.
#[derive(Debug)]
struct Judge {
    /// The authorities. None: whoever made it.
    roots: Option<RootCertStore>,
    /// Whether it must be for the host that we asked for.
    names: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Judge {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if let Some(roots) = &self.roots {
            let certificate = ParsedCertificate::try_from(end_entity)?;
            let known = self.algorithms.all;
            verify_server_cert_signed_by_trust_anchor(&certificate, roots, intermediates, now, known)?;
            if self.names {
                verify_server_name(&certificate, server_name)?;
            }
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
