package servecmd

import "os"

// reloadSignals: there are none.
var reloadSignals []os.Signal
