//! `TB.TAKEANY` and `TB.HOLDANY`: the first of several alternatives that allows.

use super::stories::play_all;

#[test]
fn stories_of_alternatives() {
    play_all(include_str!("stories/one_of.txt"));
}
