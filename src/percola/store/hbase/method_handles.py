"""§2.1: combines several calls into Java in one.

A call from Python into Java releases Python's global lock and acquires it again, so that with
sixteen threads every call waits for its turn; a request of HBase's client is a dozen of them. Java
can compose methods into one (`java.lang.invoke`), which is called instead:

    read      (table, message) → parse → to a request → ask → cells → block → bytes
    block_of  results → cells → block → bytes
    requests  messages → parse each → to a request each → an array
    change    (table, row, message) → the region's channel, parse → call → bytes

`sender` passes methods to Java, which sends the requests of whole commits with them.

That reduced a read of one cell from 0.18 to 0.16 ms with one thread, and from 0.11 to 0.07 with
sixteen. Exceptions of a step are passed on unchanged.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import jpype

from percola.store.hbase.jvm import JavaObject, java_class

log = logging.getLogger("percola.store")

OURS: Final = "io.percola.hbase."
"""The package of the classes in `java/`."""

_HBASE: Final = "org.apache.hadoop.hbase."
_MESSAGES: Final = _HBASE + "shaded.protobuf.generated.ClientProtos$"
_SHADED: Final = _HBASE + "shaded.com.google.protobuf."
_BYTES: Final = "[B"
_OBJECTS: Final = "[Ljava.lang.Object;"


class Chains:
    """The composed methods of one connection.

    Args:
        blocks: the `CellBlockBuilder` that writes cells as one block.
        codec: their encoding.
        change_rows: the coprocessor's method.
        rows_request: the class of the method's requests.
        no_answer: a response of the method; only its type matters.
    """

    def __init__(
        self,
        *,
        blocks: JavaObject,
        codec: JavaObject,
        change_rows: JavaObject,
        rows_request: JavaObject,
        no_answer: JavaObject,
    ) -> None:
        self._handles = java_class("java.lang.invoke.MethodHandles")
        self._lookup = self._handles.publicLookup()
        self._array = jpype.JArray(jpype.JByte)
        self._arrays = jpype.JArray(self._array)
        request = self._then(
            self._method(_MESSAGES + "Get", "parseFrom", _BYTES),
            self._method(_HBASE + "shaded.protobuf.ProtobufUtil", "toGet", _MESSAGES + "Get"),
        )
        written = self._writing(blocks, codec)
        asked = self._handles.filterArguments(
            self._method(_HBASE + "client.Table", "get", _HBASE + "client.Get"), 1, request
        )
        cells = self._then(asked, self._method(_HBASE + "client.Result", "cellScanner"))
        self._read = self._then(cells, written).invokeWithArguments
        cells = self._method(_HBASE + "CellUtil", "createCellScanner", "java.util.List")
        self._block_of = self._then(cells, written).invokeWithArguments
        self._change_rows, self._rows_request = change_rows, rows_request
        self._change_handle = self._changing(change_rows, rows_request, no_answer)
        self._change = self._change_handle.invokeWithArguments
        proxies = java_class("java.lang.invoke.MethodHandleProxies")
        function = java_class("java.util.function.Function").class_
        self._to_request = proxies.asInterfaceInstance(function, request)
        self._java_arrays = java_class("java.util.Arrays")

    def read(self, table: JavaObject, message: bytes) -> bytes:
        """Read a row; return its cells as one block. Raises the exceptions of HBase's client."""
        return bytes(self._read(table, self._array(message)))

    def block_of(self, results: JavaObject) -> bytes:
        """The cells of an array of results as one block."""
        # A bare list would be taken as the list of all arguments.
        listed = jpype.JArray(jpype.JObject)([self._java_arrays.asList(results)])
        return bytes(self._block_of(listed))

    def requests(self, messages: Sequence[bytes]) -> JavaObject:
        """The requests for rows, as an array."""
        found = self._java_arrays.stream(self._arrays(messages)).map(self._to_request)
        return found.toArray()

    def change(self, table: JavaObject, row: bytes, message: bytes) -> bytes:
        """Change rows of the region of `row`; return the response. Raises as `read` does."""
        return bytes(self._change(table, self._array(row), self._array(message)))

    def sender(self) -> JavaObject | None:
        """What sends requests to change rows from Java; None without its jar.

        Nor with a client of HBase's that lacks a method, which is logged.
        """
        try:
            endpoint = java_class(OURS + "Endpoint")
        except TypeError:
            return None
        try:
            return endpoint(self._change_handle, *self._batching())
        except (TypeError, jpype.JException) as error:
            log.warning("commits on HBase are not sent from Java, which is faster: %s", error)
            return None

    # --- Composing ----------------------------------------------------------------------

    def _writing(self, blocks: JavaObject, codec: JavaObject) -> JavaObject:
        """Cells → block → bytes."""
        write = self._method(
            _HBASE + "ipc.CellBlockBuilder",
            "buildCellBlock",
            _HBASE + "codec.Codec",
            "org.apache.hadoop.io.compress.CompressionCodec",
            _HBASE + "CellScanner",
        )
        block = self._given(write, 0, blocks, codec, None)
        # For no cells there is no block.
        buffer = block.type().returnType()
        nothing = self._handles.dropArguments(
            self._handles.constant(self._array.class_, self._array(0)), 0, buffer
        )
        is_none = self._method("java.util.Objects", "isNull", "java.lang.Object")
        copied = self._method(_HBASE + "util.Bytes", "getBytes", "java.nio.ByteBuffer")
        return self._then(
            block,
            self._handles.guardWithTest(self._taking(is_none, buffer), nothing, copied),
        )

    def _changing(
        self, change_rows: JavaObject, rows_request: JavaObject, no_answer: JavaObject
    ) -> JavaObject:
        """(table, row, message) → answer."""
        message = _SHADED + "Message"
        call = self._method(
            _SHADED + "BlockingRpcChannel",
            "callBlockingMethod",
            _SHADED + "Descriptors$MethodDescriptor",
            _SHADED + "RpcController",
            message,
            message,
        )
        call = self._given(self._given(call, 4, no_answer), 1, change_rows, None)
        channel = self._method(_HBASE + "client.Table", "coprocessorService", _BYTES)
        parse = self._method(str(rows_request.class_.getName()), "parseFrom", _BYTES)
        types = call.type()
        call = call.asType(
            types.changeParameterType(0, channel.type().returnType()).changeParameterType(
                1, parse.type().returnType()
            )
        )
        call = self._handles.collectArguments(call, 0, channel)
        return self._then(
            self._handles.filterArguments(call, 2, parse),
            self._method(_SHADED + "MessageLite", "toByteArray"),
        )

    def _batching(self) -> tuple[JavaObject, JavaObject, JavaObject]:
        """(row, message) → call; (table, calls, results); result → answer."""
        parse = self._method(str(self._rows_request.class_.getName()), "parseFrom", _BYTES)
        call = self._lookup.unreflectConstructor(
            java_class(_HBASE + "client.RegionCoprocessorServiceExec").class_.getConstructor(
                self._classes(
                    _BYTES, _BYTES, _SHADED + "Descriptors$MethodDescriptor", _SHADED + "Message"
                )
            )
        )
        call = self._given(self._given(call, 2, self._change_rows), 0, self._array(0))
        types = call.type()
        call = call.asType(types.changeParameterType(1, parse.type().returnType()))
        batch = self._method(_HBASE + "client.Table", "batch", "java.util.List", _OBJECTS)
        answer = self._method(_MESSAGES + "CoprocessorServiceResult", "getValue")
        for name in ("getValue", "toByteArray"):
            owner = str(answer.type().returnType().getName())
            answer = self._then(answer, self._method(owner, name))
        return self._handles.filterArguments(call, 1, parse), batch, answer

    def _method(self, owner: str, name: str, *takes: str) -> JavaObject:
        """A handle for a method of a class; its first argument is the object unless static."""
        method = java_class(owner).class_.getMethod(name, self._classes(*takes))
        method.setAccessible(True)  # A public method's class need not be public.
        return self._lookup.unreflect(method)

    def _classes(self, *names: str) -> JavaObject:
        arrays = {_BYTES: self._array, _OBJECTS: jpype.JArray(jpype.JObject)}
        return jpype.JArray(java_class("java.lang.Class"))(
            [(arrays.get(one) or java_class(one)).class_ for one in names]
        )

    def _given(self, handle: JavaObject, at: int, *values: JavaObject) -> JavaObject:
        """The handle with some of its arguments bound."""
        objects = jpype.JArray(jpype.JObject)(list(values))
        return self._handles.insertArguments(handle, at, objects)

    def _taking(self, handle: JavaObject, type_: JavaObject) -> JavaObject:
        """The handle with another type for its first argument."""
        return handle.asType(handle.type().changeParameterType(0, type_))

    def _then(self, first: JavaObject, second: JavaObject) -> JavaObject:
        """The two handles composed: the second is called with the result of the first."""
        fitting = self._taking(second, first.type().returnType())
        return self._handles.filterReturnValue(first, fitting)
