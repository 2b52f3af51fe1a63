//! The last error of a thread.

use super::*;
use crate::error::ErrorKind;

#[test]
fn an_error_of_a_body_is_its_own_and_an_older_one_stays() {
    let error = |text: &str| Error::new(ErrorKind::OutOfMemory, text);
    log_and_set_last_error(error("older"));
    let ((), none) = last_error_of(|| {});
    assert!(none.is_none(), "of no failure");
    assert_eq!(last_error().unwrap().to_string(), "older");
    let ((), new) = last_error_of(|| log_and_set_last_error(error("newer")));
    assert_eq!(new.unwrap().to_string(), "newer");
    assert_eq!(last_error().unwrap().to_string(), "newer");
}
