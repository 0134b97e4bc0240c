"""From cases and strategies to rows."""
