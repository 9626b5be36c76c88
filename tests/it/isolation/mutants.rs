//! Damaged components: nothing that the bytes say may panic the host.

use portcullis::model::verdict::FaultCode;

use super::works_still;
use crate::support::policy::{ABSTAIN, ask, facts, handmade, load};

/// A small generator with a fixed seed (xorshift64*): the same mutants every time.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let value = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        usize::try_from(value).unwrap() % bound
    }

    fn mutant(&mut self, seed: &[u8]) -> Vec<u8> {
        let mut bytes = seed.to_vec();
        for _ in 0..=self.below(3) {
            let at = self.below(bytes.len());
            match self.below(5) {
                0 => bytes[at] ^= 1 << self.below(8),
                1 => bytes[at] = u8::try_from(self.below(256)).unwrap(),
                2 => bytes.truncate(at.max(8)),
                3 => {
                    bytes.remove(at);
                }
                _ => {
                    let from = self.below(seed.len());
                    let piece = seed[from..(from + 1 + self.below(16)).min(seed.len())].to_vec();
                    bytes.splice(at..at, piece);
                }
            }
        }
        bytes
    }
}

#[tokio::test]
async fn thousands_of_damaged_components_panic_nothing() {
    let seed = handmade("1", ABSTAIN, "");
    let mut random = Random(0x5eed_0001);
    let (mut refused, mut answered, mut failed) = (0, 0, 0);
    for _ in 0..4000 {
        match load(&random.mutant(&seed)) {
            Err(_) => refused += 1,
            Ok(component) => match ask(&component, facts("test/any", "{}")).await.result {
                Ok(_) => answered += 1,
                Err(fault) => {
                    assert_ne!(fault.code, FaultCode::Budget, "a worker died: {fault}");
                    failed += 1;
                }
            },
        }
    }
    works_still().await;
    assert_eq!(refused + answered + failed, 4000);
    assert!(refused > 1000 && answered > 10, "the mutants say nothing: {refused} {answered} {failed}");
}
