//! `page`: where a peer's page is, with what opens it.

use std::net::SocketAddr;

use serde_json::json;

use super::{Asking, CommandResult, Failure, Reply, exit};
use crate::surface::client::Target;
use crate::surface::documents::PeerDocument;

/// The address of a page. The token stands behind `#`: a browser keeps that part to itself. A peer that listens on every
/// address is reached through `host`; no browser goes to 0.0.0.0.
pub fn page_link(address: &str, host: &str, token: Option<&str>) -> String {
    let read = address.parse::<SocketAddr>().ok();
    let scheme = if read.is_some_and(|a| a.ip().is_loopback()) { "http" } else { "https" };
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    let address = match read.filter(|a| a.ip().is_unspecified()) {
        Some(any) => format!("{host}:{}", any.port()),
        None => address.to_owned(),
    };
    let token = token.map(|t| format!("#token={t}")).unwrap_or_default();
    format!("{scheme}://{address}/{token}")
}

/// `starling page`
pub async fn page(asking: &Asking) -> CommandResult {
    let peer: PeerDocument = asking.client.get("/v1/peer").await?;
    let Some(address) = &peer.api else {
        return Err(Failure::usage(
            format!("{} listens on its unix socket only, which a browser cannot open", peer.name),
            "start it with --api 127.0.0.1:7421 (or api.listen in its configuration), or forward the socket: ssh -L 8080:STATE/api.sock HOST",
        ));
    };
    // As it was reached just now, or on this machine.
    let host = match asking.client.target() {
        Target::Tls(host, _) | Target::Plain(host, _) => host.as_str(),
        Target::Unix(_) => "localhost",
    };
    let link = page_link(address, host, asking.token.as_deref());
    let mut text = format!("{link}\n");
    if host == "localhost" && link.starts_with("https") && link.contains("localhost") {
        text.push_str("from another machine: with this one's name in the place of localhost\n");
    }
    if asking.token.is_none() {
        text.push_str("it asks for the text of api.token in that peer's state folder\n");
    }
    let document = json!({ "peer": peer.name, "url": link, "token": asking.token.is_some() });
    Ok(Reply::new(&document, text).with_code(exit::OK))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_says_how_it_is_reached() {
        assert_eq!(page_link("127.0.0.1:7", "x", Some("abc")), "http://127.0.0.1:7/#token=abc");
        assert_eq!(page_link("[::1]:7", "x", None), "http://[::1]:7/");
        assert_eq!(page_link("10.0.0.1:7", "x", None), "https://10.0.0.1:7/");
        // What listens everywhere is nowhere to go to.
        assert_eq!(page_link("0.0.0.0:7", "gpu1", None), "https://gpu1:7/");
        assert_eq!(page_link("[::]:7", "fe80::1", Some("t")), "https://[fe80::1]:7/#token=t");
    }
}
