"""eDP-SGD: intent classification and slot filling, trained with DP-SGD on users or on micro-batches."""
