//! Elements of the Pallas base field, which device memory holds by a wrapper.

use aquifer::DeviceCopy;
use aquifer::bytemuck::{CheckedBitPattern, NoUninit, TransparentWrapper};
use pasta_curves::Fp;

/// An element of another crate, which knows neither CUDA nor bytemuck.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(transparent)]
pub struct Scalar(pub Fp);

/// The modulus, from the least limb to the greatest.
const P: [u64; 4] = [0x992d30ed00000001, 0x224698fc094cf91b, 0, 0x4000000000000000];

// SAFETY: `Fp` is `repr(transparent)` over `[u64; 4]`: numbers without padding or pointers.
unsafe impl DeviceCopy for Scalar {}
// SAFETY: the same.
unsafe impl NoUninit for Scalar {}
// SAFETY: `Scalar` is `repr(transparent)` over `Fp`.
unsafe impl TransparentWrapper<Fp> for Scalar {}
// SAFETY: four integers whose number is below the modulus are an `Fp` in Montgomery form.
unsafe impl CheckedBitPattern for Scalar {
    type Bits = [u64; 4];

    fn is_valid_bit_pattern(bits: &[u64; 4]) -> bool {
        bits.iter().rev().lt(P.iter().rev())
    }
}

/// A step of a sum-check: neighbours become one by the challenge `r`.
pub fn fold(pair: &[Fp], r: Fp) -> Fp {
    pair[0] + r * pair[1]
}

/// A column of a trace, made up: `length` elements from `seed` on.
pub fn witness(seed: u64, length: usize) -> impl Iterator<Item = Fp> {
    std::iter::successors(Some(Fp::from(seed + 2)), |value| Some(value.square() + Fp::from(7)))
        .take(length)
}

/// What a verifier would send in a round.
pub fn challenge(round: u64) -> Fp {
    Fp::from(round + 3).square() - Fp::from(1 << 40)
}
