//! stub until merge
/// m
pub fn matches(wanted: &str, have: &str) -> bool {
    wanted == have
}
