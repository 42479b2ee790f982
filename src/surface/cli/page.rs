//! `page`: where a peer's page is, with what opens it.

use serde_json::json;

use super::{Asking, CommandResult, Failure, Reply, exit};
use crate::surface::documents::PeerDocument;

/// The address of a page. The token stands behind `#`: a browser keeps that part to itself.
pub fn page_link(address: &str, token: Option<&str>) -> String {
    let loopback = address.parse::<std::net::SocketAddr>().is_ok_and(|a| a.ip().is_loopback());
    let scheme = if loopback { "http" } else { "https" };
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
    let link = page_link(address, asking.token.as_deref());
    let mut text = format!("{link}\n");
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
        assert_eq!(page_link("127.0.0.1:7", Some("abc")), "http://127.0.0.1:7/#token=abc");
        assert_eq!(page_link("[::1]:7", None), "http://[::1]:7/");
        assert_eq!(page_link("10.0.0.1:7", None), "https://10.0.0.1:7/");
    }
}
