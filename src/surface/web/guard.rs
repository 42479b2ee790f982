//! What keeps other web sites away from a peer's API in the browser of somebody who may use it.
//!
//! Over the loopback listener the page sends the token as a header, from storage that only this very origin can
//! read: no cookie is set, so no other site has anything to ride on. Two ways carry their right with the connection
//! (the unix socket, forwarded by ssh; a client certificate). For these: a request that says it comes from another
//! site is refused, and over plain HTTP so is a host name that a name server somewhere could point here.

use axum::http::{HeaderMap, header};

/// Why a request may not come from where it says; none when it may.
pub fn refusal(headers: &HeaderMap, plain: bool) -> Option<&'static str> {
    let text = |name: header::HeaderName| headers.get(name).map(|v| v.to_str().unwrap_or("?"));
    let host = text(header::HOST);
    if plain
        && let Some(host) = host
        && !is_here(host)
    {
        return Some("a request for another host name: use localhost or an address");
    }
    if let Some(origin) = text(header::ORIGIN) {
        let authority = origin.split_once("://").map(|(_, rest)| rest);
        if authority.is_none() || authority != host {
            return Some("a request from another web site");
        }
    }
    match headers.get("sec-fetch-site").map(|v| v.to_str().unwrap_or("?")) {
        None | Some("same-origin" | "none") => None,
        // A link from elsewhere to the page may be followed; what it shows cannot be read there.
        Some(_) if text(header::HeaderName::from_static("sec-fetch-mode")) == Some("navigate") => None,
        Some(_) => Some("a request from another web site"),
    }
}

/// An address, localhost, or a name without a dot, which no public name server answers for.
fn is_here(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    name.parse::<std::net::IpAddr>().is_ok() || !name.contains('.') || name.ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(plain: bool, list: &[(&'static str, &'static str)]) -> bool {
        let headers = list
            .iter()
            .map(|(k, v)| (header::HeaderName::from_static(k), header::HeaderValue::from_static(v)))
            .collect();
        refusal(&headers, plain).is_some()
    }

    #[test]
    fn other_sites_are_refused() {
        for (plain, headers) in [
            (true, &[("host", "evil.example:7421")][..]),
            (true, &[("host", "127.0.0.1.evil.example")]),
            (true, &[("host", "127.0.0.1:1"), ("origin", "http://evil.example")]),
            (true, &[("host", "127.0.0.1:1"), ("origin", "http://127.0.0.1:2")]),
            (true, &[("host", "127.0.0.1:1"), ("origin", "null")]),
            (true, &[("origin", "http://127.0.0.1:2")]),
            (false, &[("host", "peer.example"), ("origin", "https://evil.example")]),
            (
                false,
                &[("host", "peer.example"), ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors")],
            ),
            (false, &[("host", "peer.example"), ("sec-fetch-site", "same-site")]),
        ] {
            assert!(refused(plain, headers), "{headers:?}");
        }
        for (plain, headers) in [
            (true, &[][..]),
            (true, &[("host", "starling")]),
            (true, &[("host", "localhost:7421"), ("origin", "http://localhost:7421")]),
            (true, &[("host", "[::1]:7421"), ("sec-fetch-site", "same-origin")]),
            (true, &[("host", "a.localhost:1")]),
            (true, &[("host", "127.0.0.1:1"), ("sec-fetch-site", "none"), ("sec-fetch-mode", "navigate")]),
            (
                false,
                &[("host", "peer.example"), ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")],
            ),
            (false, &[("host", "peer.example"), ("origin", "https://peer.example")]),
        ] {
            assert!(!refused(plain, headers), "{headers:?}");
        }
    }
}
