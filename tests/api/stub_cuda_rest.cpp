// Functions of the driver that plans never call: whatever they are given, they succeed. Declared without cuda.h, whose
// declarations have parameters.
extern "C" {
int cuDeviceGetPCIBusId() {
  return 0;
}
int cuCtxGetId() {
  return 0;
}
int cuThreadExchangeStreamCaptureMode() {
  return 0;
}
int cuFuncGetAttribute() {
  return 0;
}
int cuStreamCreate() {
  return 0;
}
int cuStreamBeginCapture_v2() {
  return 0;
}
int cuStreamEndCapture() {
  return 0;
}
int cuGraphInstantiateWithFlags() {
  return 0;
}
int cuGraphLaunch() {
  return 0;
}
int cuGraphExecDestroy() {
  return 0;
}
int cuGraphDestroy() {
  return 0;
}
int cuEventCreate() {
  return 0;
}
int cuEventRecord() {
  return 0;
}
int cuEventElapsedTime() {
  return 0;
}
int cuStreamDestroy_v2() {
  return 0;
}
int cuStreamWaitEvent() {
  return 0;
}
int cuEventQuery() {
  return 0;
}
int cuEventDestroy_v2() {
  return 0;
}
}
