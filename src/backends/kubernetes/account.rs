//! Who asks the API server: the user of a kubeconfig or the account of this pod, and what to do where it gets no answer.

use std::error::Error;
use std::time::Duration;

use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use rustls::CertificateError::{BadSignature, UnknownIssuer};

use super::api::{Access, ApiError, CALL_TIME};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Account {
    Kubeconfig,
    /// Its files are read again about every minute.
    Pod,
}

/// Reads the configuration; the server need not be there.
pub(super) async fn read(access: &Access) -> anyhow::Result<(Config, Account)> {
    let options = KubeConfigOptions { context: access.context.clone(), ..Default::default() };
    let mut config = match &access.kubeconfig {
        Some(file) => {
            let read = Kubeconfig::read_from(file)
                .map_err(|e| anyhow::anyhow!("the kubeconfig {}: {e}", file.display()))?;
            Config::from_custom_kubeconfig(read, &options).await?
        }
        None if access.context.is_some() => Config::from_kubeconfig(&options).await?,
        None => Config::infer().await.map_err(|e| {
            if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
                anyhow::anyhow!(
                    "the account of this pod cannot be used: have it mounted (serviceAccountName, \
                     automountServiceAccountToken), or give --kubeconfig or KUBECONFIG ({e})"
                )
            } else {
                anyhow::anyhow!("no way to a cluster: give --kubeconfig or KUBECONFIG, or run in a pod ({e})")
            }
        })?,
    };
    config.connect_timeout = Some(Duration::from_secs(5));
    config.write_timeout = Some(CALL_TIME);
    // Bounded call by call; watches and logs are open for longer.
    config.read_timeout = None;
    // A pod's file of it may end with a line.
    config.default_namespace = config.default_namespace.trim().to_owned();
    let account = if config.root_cert_file.is_some() { Account::Pod } else { Account::Kubeconfig };
    Ok((config, account))
}

/// An error and what is behind it.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&e| match e.downcast_ref::<std::io::Error>().map(|io| io.get_ref()) {
        // As its source it names that of the error within it.
        Some(Some(within)) => Some(within as &(dyn Error + 'static)),
        _ => e.source(),
    })
}

impl Account {
    /// A call without an answer. The outermost error says only that there is none.
    pub(super) fn unsent(self, error: &kube::Error) -> ApiError {
        let first: &(dyn Error + 'static) = match error {
            kube::Error::Service(within) => &**within,
            other => other,
        };
        let mut text = String::new();
        for said in causes(first).map(ToString::to_string) {
            if !text.contains(&said) {
                text.push_str(if text.is_empty() { "" } else { ": " });
                text.push_str(&said);
            }
        }
        let foreign = causes(first)
            .filter_map(|c| c.downcast_ref::<rustls::Error>())
            .any(|e| matches!(e, rustls::Error::InvalidCertificate(UnknownIssuer | BadSignature)));
        if foreign {
            text.push_str(match self {
                Self::Pod => {
                    "; it is not signed by the ca.crt of this pod's account: KUBERNETES_SERVICE_HOST and the \
                     ConfigMap kube-root-ca.crt must be those of one cluster"
                }
                Self::Kubeconfig => {
                    "; it is not signed by the kubeconfig's authority: set certificate-authority-data to the server's"
                }
            });
        }
        ApiError::Unknown(text)
    }

    /// What a 401 is about.
    pub(super) fn refused(self) -> &'static str {
        match self {
            Self::Pod => {
                "the token of this pod's account is refused; its file is read again every minute: if that does not \
                 help, is its ServiceAccount still there?"
            }
            Self::Kubeconfig => "the kubeconfig's credentials are refused: renew them, then restart the peer",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn a_call_without_an_answer_says_why_and_what_to_do() {
        let failed = |error: rustls::Error| {
            let wire = io::Error::other(io::Error::new(io::ErrorKind::InvalidData, error));
            let ApiError::Unknown(text) = Account::Pod.unsent(&kube::Error::Service(Box::new(wire))) else {
                panic!("nothing is concluded");
            };
            text
        };
        let foreign = failed(rustls::Error::InvalidCertificate(UnknownIssuer));
        assert!(
            foreign.starts_with("invalid peer certificate: UnknownIssuer; it is not signed"),
            "{foreign}"
        );
        assert!(foreign.contains("kube-root-ca.crt"), "{foreign}");
        let expired = failed(rustls::Error::InvalidCertificate(rustls::CertificateError::Expired));
        assert_eq!(expired, "invalid peer certificate: Expired");
    }
}
