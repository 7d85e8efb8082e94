"""What a training needs at each moment, by formula."""
