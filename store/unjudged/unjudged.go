// Package unjudged is for tests that open stores on real files, on a machine that has other work: there a drive stands
// still for a second, and is found hung, and what a test put is gone.
package unjudged

import (
	"time"

	"github.com/skepkv/skep/store/internal/health"
)

// long is longer than any test.
const long = time.Hour

// Drives has no store of this process find a drive slow or hung, however long its reads and writes take. Errors, wrong
// bytes and files that are gone are judged as ever. It is for a TestMain: no store may be open.
func Drives() {
	r := &health.DefaultRules
	r.Hung, r.HungWrites, r.Floor, r.Tolerate = long, long, long, long
}
