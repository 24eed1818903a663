"""A stand-in for TensorFold's native engine serving DeepSeek V4.1 Flash over two machines.

It follows the engine's public contract as a caller and a launcher meet it: command lines and
environment of both ranks, who listens and who connects, the ready line, the HTTP interface with its
refusals, the metrics, one shared pool of positions, the rank file format, and the habit that one
rank's failure leaves the other one up.

It cannot show what needs the real engine: text quality, tokenisation, sampling, speed, CUDA graphs,
RDMA traffic, memory use (the simulated machine accounts for that) or tool calls.
"""
