//go:build !(cuda && cgo && linux)

package cuda

import (
	"github.com/skepkv/skep"
	"github.com/skepkv/skep/gpu"
)

// Count is how many GPUs there are. Without the tag cuda it is Unsupported.
func Count() (int, error) { return 0, missing("count GPUs") }

// Open opens a GPU by its number. Without the tag cuda it is Unsupported.
func Open(int, Options) (gpu.Device, error) { return nil, missing("open GPU") }

func missing(op string) error {
	return &skep.Error{Op: op, Kind: skep.Unsupported, Field: "build tags", Value: "without cuda", Limit: "-tags cuda on Linux with cgo: make cuda"}
}
