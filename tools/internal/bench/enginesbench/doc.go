// Package enginesbench measures the Python package skepkv as inference engines use it: in turns with a Store in this
// process and with Mooncake Store, where its Python package is installed. What runs in Python is engines.py, a process
// for each way, which is asked for a round by a line.
//
// With Options.Nodes it is clusters of skep servers beside Mooncake's master and segments, all on this machine; with
// Options.Kill, what each of them loses with a process.
package enginesbench
