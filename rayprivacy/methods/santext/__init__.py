"""SanText and SanText+ (Yue et al., 2021) as a method: text sanitised word by word."""
