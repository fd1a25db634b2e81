//! Which files go when a new one needs room. Pure.

use std::time::Duration;

/// Files at most: listing a folder that is far larger takes longer than many a file spares.
pub(crate) const MAX_FILES: usize = 8192;

/// A file in the folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) file: String,
    pub(crate) bytes: u64,
    /// When it was used last, since 1970.
    pub(crate) used: Duration,
}

/// The files that must go for `bytes` more to fit, those used longest ago first; none if they never fit.
pub(crate) fn make_room(mut files: Vec<Entry>, bytes: u64, budget: u64) -> Option<Vec<Entry>> {
    if bytes > budget {
        return None;
    }
    let mut held: u64 = files.iter().map(|file| file.bytes).fold(0, u64::saturating_add);
    let mut n_files = files.len();
    // By name among those of one time: every process chooses the same.
    files.sort_unstable_by(|a, b| (a.used, &a.file).cmp(&(b.used, &b.file)));
    let mut goes = |file: &Entry| {
        let is_full = held > budget - bytes || n_files >= MAX_FILES;
        if is_full {
            held -= file.bytes;
            n_files -= 1;
        }
        is_full
    };
    Some(files.into_iter().take_while(|file| goes(file)).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(index: usize, bytes: u64, used: u64) -> Entry {
        Entry { file: format!("{index}.kv"), bytes, used: Duration::from_secs(used) }
    }

    #[test]
    fn those_used_longest_ago_go_first_and_no_more_than_must() {
        let files = vec![entry(0, 4, 30), entry(1, 4, 10), entry(2, 4, 20)];
        let gone = |bytes, budget| {
            let gone = make_room(files.clone(), bytes, budget)?;
            Some(gone.into_iter().map(|file| file.file).collect::<Vec<_>>())
        };
        assert_eq!(gone(4, 16), Some(vec![]));
        assert_eq!(gone(5, 16), Some(vec!["1.kv".to_owned()]));
        assert_eq!(gone(9, 16), Some(vec!["1.kv".to_owned(), "2.kv".to_owned()]));
        assert_eq!(gone(17, 16), None);
        assert_eq!(gone(0, 4).map(|gone| gone.len()), Some(2), "a smaller budget than before");
    }

    #[test]
    fn the_number_of_files_is_bounded() {
        let files = (0..MAX_FILES + 3).map(|index| entry(index, 1, index as u64)).collect();
        assert_eq!(make_room(files, 1, u64::MAX).unwrap().len(), 4);
    }

    proptest! {
        #[test]
        fn what_stays_fits(
            sizes in prop::collection::vec((0..50_u64, 0..9_u64), 0..30),
            bytes in 0..100_u64,
            budget in 0..300_u64,
        ) {
            let files: Vec<_> =
                sizes.iter().enumerate().map(|(at, &(bytes, used))| entry(at, bytes, used)).collect();
            let total: u64 = files.iter().map(|file| file.bytes).sum();
            match make_room(files, bytes, budget) {
                None => prop_assert!(bytes > budget),
                Some(gone) => {
                    let freed: u64 = gone.iter().map(|file| file.bytes).sum();
                    prop_assert!(total - freed + bytes <= budget);
                    let last = gone.last().map_or(0, |file| file.bytes);
                    prop_assert!(gone.is_empty() || total - (freed - last) + bytes > budget);
                }
            }
        }
    }
}
