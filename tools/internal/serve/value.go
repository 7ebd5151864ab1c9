package serve

import "github.com/skepkv/skep/tools/internal/units"

// Sizes and durations of settings.
type (
	Size     = units.Size
	Duration = units.Duration
)
