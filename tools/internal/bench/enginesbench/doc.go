// Package enginesbench measures the Python package skepkv as inference engines use it: in turns with a Store in this
// process and with Mooncake Store, where its Python package is installed. What runs in Python is engines.py, a process
// for each way, which is asked for a round by a line.
package enginesbench
