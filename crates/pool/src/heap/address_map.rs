//! Tables by address.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A table whose keys are addresses.
pub type AddressMap<K, V> = HashMap<K, V, BuildHasherDefault<AddressHasher>>;

/// Mixes an address. The driver chose it, so there is no input to defend against.
#[derive(Debug, Default)]
pub struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_usize(&mut self, address: usize) {
        self.write_u64(address as u64);
    }

    fn write_u64(&mut self, address: u64) {
        // Blocks start at multiples of 64 and often of much more: the two halves of the product have
        // all bits in them. Not the factor that chooses a shard.
        let product = u128::from(self.0 ^ address) * 0xd6e8_feb8_6659_fd93;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests;
