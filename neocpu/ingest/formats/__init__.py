"""How is a log written, and which column is what? Text, Parquet, frames, and their schema."""
