package doctor

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestMemoryOfTheControlGroupIsSaid(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		limit  int64
		status Status
		says   string
	}{
		{0, OK, "no control group limits"},
		{512 << 20, Warn, "512 MiB"},
		{8 << 30, OK, "8192 MiB"},
	} {
		var r Report
		r.memory(c.limit)
		assert.Equal(t, c.status, r.Checks[0].Status)
		assert.Contains(t, r.Checks[0].Detail, c.says)
		assert.Equal(t, c.status != OK, r.Checks[0].Next != "")
	}
}
