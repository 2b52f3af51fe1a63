use super::*;

#[test]
fn the_number_of_slots_that_a_tool_gets_counts_the_null_at_the_end() {
    // With or without a tool.
    fill();
    for (module, functions) in MODULES.into_iter().enumerate().skip(1) {
        let (mut table, mut last) = (std::ptr::null_mut::<*mut usize>(), 0);
        // SAFETY: two places that live for the call.
        let known = unsafe { module_table(module as c_int, &raw mut table, &raw mut last) };
        assert_eq!((known, last as usize), (1, functions + 1));
        for number in 0..TABLE_LENGTH {
            // SAFETY: inside of the table, which is not written meanwhile.
            let place = unsafe { table.add(number).read() };
            let is_one = (1..=functions).contains(&number);
            assert_eq!(!place.is_null(), is_one, "{number} of module {module}");
        }
    }
    for none in [-1, 0, MODULES.len() as c_int] {
        // SAFETY: nothing is written through nulls.
        let known = unsafe { module_table(none, std::ptr::null_mut(), std::ptr::null_mut()) };
        assert_eq!(known, 0);
    }
}
