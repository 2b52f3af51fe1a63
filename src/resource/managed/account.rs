//! How much managed memory the process has asked of a device.
//!
//! The driver counts managed memory as used where it lies, and it lies nowhere before somebody
//! touches it: what is free says nothing of what was promised. So all resources of a device keep one
//! account of what they took, and of how much of the device is there for them.

use crate::backend::BackendKind;
use crate::device::Device;
use crate::sync::Arc;
use crate::sync::trusted::Mutex;
use std::collections::{BTreeMap, HashMap};

/// The managed memory of one device, in bytes.
#[derive(Debug, Default)]
pub(super) struct Account {
    /// Blocks that live, by the driver's address.
    blocks: HashMap<u64, u64>,
    /// Their sum.
    live: u64,
    /// What all of them together may have: what was free when there were none, and what others have
    /// given back since.
    most: u64,
    /// What was free when it was last looked at.
    seen: u64,
    /// Bytes that went back since then, and those on their way.
    freed: u64,
    freeing: u64,
}

type Accounts = BTreeMap<(bool, u64), Arc<Mutex<Account>>>;

static ACCOUNTS: Mutex<Accounts> = Mutex::new(BTreeMap::new());

/// The account of a device, one for the process.
pub(super) fn of(device: &Device) -> Arc<Mutex<Account>> {
    let (kind, number) = device.key();
    let mut accounts = ACCOUNTS.lock();
    // Simulated devices come and go.
    accounts.retain(|_, account| Arc::strong_count(account) > 1 || account.lock().live > 0);
    accounts.entry((kind == BackendKind::Simulated, number)).or_default().clone()
}

impl Account {
    /// Takes note of what is free now. Who changes the account meanwhile waits: the caller has its
    /// lock.
    pub(super) fn see(&mut self, free: u64) {
        // While some are on their way back, what is free is not all that there was.
        if self.live == 0 && self.freeing == 0 {
            self.most = free;
        } else {
            // What rose and was not ours, others gave back. Ours that is just being freed may be in it
            // or not: then it is not counted.
            let risen = free.saturating_sub(self.seen);
            let given = risen.saturating_sub(self.freed).saturating_sub(self.freeing);
            let most = self.most.saturating_add(given).max(free);
            // All of ours may lie on the device, but no more than that.
            let ours = self.live.saturating_add(self.freeing);
            self.most = most.min(free.saturating_add(ours));
        }
        (self.seen, self.freed) = (free, 0);
    }

    /// Whether there is room for so much more beside what lives, as of the last look.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        let sum = self.live.checked_add(bytes);
        bytes <= self.seen && sum.is_some_and(|sum| sum <= self.most)
    }

    /// Bytes that live.
    pub(super) fn live(&self) -> u64 {
        self.live
    }

    /// The driver handed this out.
    pub(super) fn enter(&mut self, address: u64, bytes: u64) {
        let before = self.blocks.insert(address, bytes).unwrap_or(0);
        self.live = self.live.saturating_sub(before).saturating_add(bytes);
    }

    /// This is about to go back to the driver, which may hand its address out again at once. Gives its
    /// size, for [`left`](Self::left).
    pub(super) fn leave(&mut self, address: u64) -> u64 {
        let bytes = self.blocks.remove(&address).unwrap_or(0);
        self.live = self.live.saturating_sub(bytes);
        self.freeing = self.freeing.saturating_add(bytes);
        bytes
    }

    /// So much went back.
    pub(super) fn left(&mut self, bytes: u64) {
        self.freeing = self.freeing.saturating_sub(bytes);
        self.freed = self.freed.saturating_add(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_has_touched_yet_is_promised_all_the_same() {
        let mut account = Account::default();
        account.see(100);
        assert!(account.has_room(100) && !account.has_room(101));
        account.enter(1, 60);
        account.see(100); // untouched, so free
        assert!(account.has_room(40) && !account.has_room(41));
        account.see(40); // touched
        assert!(account.has_room(40) && !account.has_room(41));
        account.see(30); // somebody else took ten
        assert!(account.has_room(30) && !account.has_room(31));
        account.see(40); // and gave it back
        assert!(account.has_room(40) && !account.has_room(41));
        let bytes = account.leave(1);
        account.left(bytes);
        account.see(100);
        assert!(account.has_room(100));
    }

    #[test]
    fn what_others_give_back_is_room() {
        let mut account = Account::default();
        account.see(50);
        account.enter(1, 40);
        account.see(10);
        account.see(60);
        assert!(account.has_room(60) && !account.has_room(61));
    }

    #[test]
    fn what_goes_back_is_no_gift_of_others() {
        for ran_at_once in [false, true] {
            let mut account = Account::default();
            account.see(100);
            account.enter(1, 30);
            account.enter(2, 40);
            account.see(30);
            let bytes = account.leave(1);
            // Somebody looks while the driver is at it.
            account.see(if ran_at_once { 60 } else { 30 });
            account.left(bytes);
            account.see(60);
            assert_eq!(account.most, 100, "{ran_at_once}");
            assert!(account.has_room(60) && !account.has_room(61), "{ran_at_once}");
        }
    }

    #[test]
    fn what_is_just_going_back_was_room_and_will_be() {
        for ran_at_once in [false, true] {
            let mut account = Account::default();
            account.see(100);
            account.enter(1, 60);
            account.see(40);
            let bytes = account.leave(1);
            // Nothing lives, and the driver is at it.
            account.see(if ran_at_once { 100 } else { 40 });
            account.enter(2, 10);
            account.left(bytes);
            account.see(90);
            assert!(account.has_room(90) && !account.has_room(91), "{ran_at_once}");
        }
    }

    #[test]
    fn a_block_is_known_by_its_address_and_counted_once() {
        let mut account = Account::default();
        account.see(100);
        account.enter(1, 30);
        account.enter(1, 10);
        assert_eq!((account.live(), account.leave(2), account.leave(1)), (10, 0, 10));
        assert_eq!((account.live(), account.leave(1)), (0, 0));
        account.enter(3, u64::MAX);
        assert!(!account.has_room(1));
    }
}
