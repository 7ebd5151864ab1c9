//go:build !unix

package doctor

import "runtime"

const notHere = "not known on this system; skep is at home on Linux"

func (r *Report) kernel()  { r.add("kernel", Warn, runtime.GOOS+" on "+runtime.GOARCH, notHere) }
func (r *Report) memlock() { r.add("locked memory", Warn, notHere, "") }
func (r *Report) space()   { r.add("free space", Warn, notHere, "") }
