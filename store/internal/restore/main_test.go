package restore

import (
	"testing"

	"github.com/skepkv/skep/tools/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }
