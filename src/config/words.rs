//! Enums whose values are words of the file.

/// An enum whose values are written as words in the file, one word for each value.
pub(super) trait ConfigWord: Copy + PartialEq + 'static {
    /// Words with their values, in the order of the reference.
    const WORDS: &'static [(&'static str, Self)];

    /// The value as written in the file.
    fn word(self) -> &'static str {
        let mut words = Self::WORDS.iter();
        let own = words.find(|(_, value)| *value == self);
        own.map_or("", |(word, _)| *word)
    }
}

/// Declares an enum with the word of each value, as `Shared = "shared"`, where `ConfigWord` is imported too. The enum
/// is `Debug`, `Copy` and `Eq`; a `derive` of its own adds to that.
macro_rules! word_enum {
    ($(#[$about:meta])* pub enum $type:ident {
        $($(#[$meaning:meta])* $value:ident = $word:literal,)+
    }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $type {
            $($(#[$meaning])* $value,)+
        }

        impl ConfigWord for $type {
            const WORDS: &'static [(&'static str, Self)] = &[$(($word, Self::$value)),+];
        }
    };
}
pub(super) use word_enum;
